// Attention of packed patches inside their segments, and the packing of their keys and values.
#include <algorithm>
#include <cstring>
#include <vector>

#include "api.h"
#include "attention.h"
#include "pieces.h"

namespace tapetum {
namespace {

typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(16)));

template <class V>
V load(const void* from) {
  V v;
  memcpy(&v, from, sizeof v);
  return v;
}

// `put_key` of 16 tokens whose D is a multiple of 16: words are transposed, four by four.
template <class T>
void put_keys(T* group, const T* k, int64_t stride, int width) {
  constexpr int E = 4 / sizeof(T);
  for (int d = 0; d < width; d += 4 * E)
    for (int token = 0; token < kGroup; token += 4) {
      const T* from = k + token * stride + d;
      const auto a = load<Words>(from), b = load<Words>(from + stride);
      const auto c = load<Words>(from + 2 * stride), e = load<Words>(from + 3 * stride);
      const Words low[2] = {__builtin_shuffle(a, b, Words{0, 4, 1, 5}), __builtin_shuffle(c, e, Words{0, 4, 1, 5})};
      const Words high[2] = {__builtin_shuffle(a, b, Words{2, 6, 3, 7}), __builtin_shuffle(c, e, Words{2, 6, 3, 7})};
      const Words turned[4] = {
          __builtin_shuffle(low[0], low[1], Words{0, 1, 4, 5}),
          __builtin_shuffle(low[0], low[1], Words{2, 3, 6, 7}),
          __builtin_shuffle(high[0], high[1], Words{0, 1, 4, 5}),
          __builtin_shuffle(high[0], high[1], Words{2, 3, 6, 7})};
      for (int i = 0; i < 4; ++i) memcpy(group + (d + i * E) * kGroup + token * E, &turned[i], sizeof(Words));
    }
}

// `put_value` of 16 tokens.
void put_values(float* group, const float* v, int64_t stride, int width) {
  for (int token = 0; token < kGroup; ++token) std::copy_n(v + token * stride, width, group + token * width);
}

void put_values(uint16_t* group, const uint16_t* v, int64_t stride, int width) {
  for (int token = 0; token < kGroup; token += 2)
    for (int d = 0; d < width; d += 8) {
      const auto a = load<Halves>(v + token * stride + d), b = load<Halves>(v + (token + 1) * stride + d);
      const Halves low = __builtin_shuffle(a, b, Halves{0, 8, 1, 9, 2, 10, 3, 11});
      const Halves high = __builtin_shuffle(a, b, Halves{4, 12, 5, 13, 6, 14, 7, 15});
      memcpy(group + token * width + 2 * d, &low, sizeof low);
      memcpy(group + token * width + 2 * d + 8, &high, sizeof high);
    }
}

int64_t padded(int64_t count) { return ceil_div(count, kGroup) * kGroup; }

// The buffer is [2 H, patches, D], key heads before value heads, in groups as in `Cache`. Each segment begins with a
// group of its own and D is filled up to a multiple of 16, both with zeros.
struct Plan {
  explicit Plan(const Patches& patches) : width(padded(patches.head_dim)) {
    for (int64_t i = 0; i < patches.count; ++i) starts.push_back(starts.back() + padded(length(patches, i)));
  }

  static int64_t length(const Patches& patches, int64_t i) { return patches.bounds[i + 1] - patches.bounds[i]; }
  int64_t at(int64_t head, int64_t segment) const { return (head * starts.back() + starts[segment]) * width; }

  int64_t width;
  std::vector<int64_t> starts{0};  // of each segment among the packed patches, and their number
};

// Up to a tile of one segment and head.
template <class T>
void pack_tile(int tokens, int width, int head_dim, const T* k, int64_t k_stride, const T* v, int64_t v_stride, T* keys,
               T* values) {
  if (width != head_dim || tokens % kGroup) {
    std::fill_n(keys, padded(tokens) * width, T(0));
    std::fill_n(values, padded(tokens) * width, T(0));
  }
  int i = 0;
  for (; i + kGroup <= tokens && width == head_dim; i += kGroup) {
    put_keys(keys + i * width, k + i * k_stride, k_stride, width);
    put_values(values + i * width, v + i * v_stride, v_stride, width);
  }
  for (; i < tokens; ++i) {
    const int group = i / kGroup * kGroup * width;
    put_key(keys + group, i % kGroup, k + i * k_stride, head_dim);
    put_value(values + group, width, i % kGroup, v + i * v_stride, head_dim);
  }
}

template <class T>
void pack(const Patches& patches, const T* k, int64_t k_stride, const T* v, int64_t v_stride, T* keys) {
  const Plan plan(patches);
  Pieces pieces;
  for (int64_t i = 0; i < patches.count; ++i)
    pieces.add(ceil_div(Plan::length(patches, i), kTile) * patches.heads);
  pieces.run([&](int64_t segment, int64_t piece) {
    const int64_t head = piece % patches.heads, first = piece / patches.heads * kTile;
    const int64_t tokens = std::min<int64_t>(kTile, Plan::length(patches, segment) - first);
    const int64_t patch = patches.bounds[segment] + first, lane = head * patches.head_dim;
    pack_tile(int(tokens), int(plan.width), patches.head_dim, k + patch * k_stride + lane, k_stride,
              v + patch * v_stride + lane, v_stride, keys + plan.at(head, segment) + first * plan.width,
              keys + plan.at(patches.heads + head, segment) + first * plan.width);
  });
}

}  // namespace

int64_t segment_keys_size(const Patches& patches) { return Plan(patches).at(2 * patches.heads, 0); }

void segment_keys(const Patches& patches, const void* k, int64_t k_stride, const void* v, int64_t v_stride,
                  void* keys) {
  if (patches.dtype) {
    pack(patches, static_cast<const uint16_t*>(k), k_stride, static_cast<const uint16_t*>(v), v_stride,
         static_cast<uint16_t*>(keys));
  } else {
    pack(patches, static_cast<const float*>(k), k_stride, static_cast<const float*>(v), v_stride,
         static_cast<float*>(keys));
  }
}

void segment_attention(const Patches& patches, const void* keys, const void* q, int64_t q_stride, int64_t first,
                       int64_t length, float scale, void* out, int64_t out_stride) {
  const Plan plan(patches);
  const auto low = [&](int64_t i) { return std::max<int64_t>(patches.bounds[i], first); };
  const auto queries_of = [&](int64_t i) {
    return std::max<int64_t>(0, std::min<int64_t>(patches.bounds[i + 1], first + length) - low(i));
  };
  Pieces pieces;
  for (int64_t i = 0; i < patches.count; ++i) pieces.add(ceil_div(queries_of(i), kRows) * patches.heads);
  pieces.run([&](int64_t segment, int64_t piece) {
    const int64_t parts = ceil_div(queries_of(segment), kRows), head = piece / parts;
    const int64_t start = low(segment) - first, lane = head * patches.head_dim;
    Queries queries{move_by(q, start * q_stride + lane, patches.dtype),
                    move_by(out, start * out_stride + lane, patches.dtype),
                    q_stride, out_stride, Plan::length(patches, segment), 0, 1, patches.head_dim, 0, 0, scale};
    queries.stretch = queries.seen;  // there are pieces enough for all threads
    choose_part(queries_of(segment), parts, piece % parts, queries);
    const Keys packed{move_by(keys, plan.at(head, segment), patches.dtype),
                      move_by(keys, plan.at(patches.heads + head, segment), patches.dtype),
                      nullptr, kGroup, int(plan.width), true};
    attend(patches.dtype, queries, packed);
  });
}

}  // namespace tapetum

TPT_API int64_t tpt_segment_keys_size(const int32_t* bounds, int64_t segments, int heads, int head_dim) {
  return tapetum::segment_keys_size({bounds, segments, heads, head_dim, 0});
}

TPT_API void tpt_segment_keys(int dtype, const int32_t* bounds, int64_t segments, int heads, int head_dim,
                              const void* k, int64_t k_stride, const void* v, int64_t v_stride, void* keys) {
  tapetum::segment_keys({bounds, segments, heads, head_dim, dtype}, k, k_stride, v, v_stride, keys);
}

TPT_API void tpt_segment_attention(int dtype, const int32_t* bounds, int64_t segments, int heads, int head_dim,
                                   const void* keys, const void* q, int64_t q_stride, int64_t first, int64_t length,
                                   float scale, void* out, int64_t out_stride) {
  tapetum::segment_attention({bounds, segments, heads, head_dim, dtype}, keys, q, q_stride, first, length, scale, out,
                             out_stride);
}
