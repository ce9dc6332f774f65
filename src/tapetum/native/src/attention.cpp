#include "attention.h"

#include <algorithm>
#include <vector>

#include "api.h"
#include "attend.h"
#include "pool.h"

namespace tapetum {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void attend(int dtype, const Queries& queries, const Keys& keys) {
  if (dtype) TPT_CHOOSE(attend_bf16)(queries, keys);
  else TPT_CHOOSE(attend_float)(queries, keys);
}

// A piece of work is one part of the query rows of one key head of one span of tokens. Spans hold
// the number of their pieces in `ends`, summed up.
struct Pieces {
  std::vector<int64_t> ends;

  void add(int64_t count) { ends.push_back((ends.empty() ? 0 : ends.back()) + count); }

  template <class Work>
  void run(const Work& work) const {
    parallel_for(ends.empty() ? 0 : ends.back(), [&](int64_t piece) {
      const int64_t span = std::upper_bound(ends.begin(), ends.end(), piece) - ends.begin();
      work(span, piece - (span ? ends[span - 1] : 0));
    });
  }
};

// Part `index` of `parts` near equal ones of `rows` rows.
void choose_part(int64_t rows, int64_t parts, int64_t index, Queries& queries) {
  queries.first = rows * index / parts;
  queries.count = int(rows * (index + 1) / parts - queries.first);
}

const void* move_by(const void* data, int64_t elements, int dtype) {
  return static_cast<const char*>(data) + elements * (dtype ? 2 : 4);
}

void* move_by(void* data, int64_t elements, int dtype) {
  return static_cast<char*>(data) + elements * (dtype ? 2 : 4);
}

}  // namespace

void paged_attention(const void* q, int64_t q_stride, const Cache& cache, const Rows& rows, int heads, float scale,
                     void* out, int64_t out_stride) {
  const int group = heads / cache.kv_heads;
  Pieces pieces;
  for (int64_t i = 0; i < rows.count; ++i)
    pieces.add(ceil_div(int64_t(rows.rows[4 * i + 1]) * group, kRows) * cache.kv_heads);
  const int64_t head_size = cache.num_blocks * cache.block_size * cache.head_dim;
  pieces.run([&](int64_t row, int64_t piece) {
    const int32_t* numbers = rows.rows + 4 * row;
    const int64_t start = numbers[0], length = numbers[1], context = numbers[2];
    const int64_t parts = ceil_div(length * group, kRows), head = piece / parts;
    const int64_t lane = head * group * cache.head_dim;
    Queries queries{move_by(q, start * q_stride + lane, cache.dtype),
                    move_by(out, start * out_stride + lane, cache.dtype),
                    q_stride, out_stride, context + 1, 1, group, cache.head_dim, 0, 0, scale};
    choose_part(length * group, parts, parts - 1 - piece % parts, queries);  // those with the most keys first
    const Keys keys{move_by(cache.data, head * head_size, cache.dtype),
                    move_by(cache.data, (cache.kv_heads + head) * head_size, cache.dtype),
                    rows.blocks + numbers[3], cache.block_size, cache.head_dim, cache.is_packed()};
    attend(cache.dtype, queries, keys);
  });
}

namespace {

int64_t padded(int64_t count) { return ceil_div(count, kGroup) * kGroup; }

// The buffer is [2 H, patches, D], key heads before value heads, in groups as in `Cache`. Each segment begins with a group
// of its own and D is filled up to a multiple of 16, both with zeros.
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
  for (int i = 0; i < tokens; ++i) {
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

void segment_keys(const Patches& patches, const void* k, int64_t k_stride, const void* v, int64_t v_stride, void* keys) {
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
    choose_part(queries_of(segment), parts, piece % parts, queries);
    const Keys packed{move_by(keys, plan.at(head, segment), patches.dtype),
                      move_by(keys, plan.at(patches.heads + head, segment), patches.dtype),
                      nullptr, kGroup, int(plan.width), true};
    attend(patches.dtype, queries, packed);
  });
}

}  // namespace tapetum

TPT_API void tpt_paged_attention(int dtype, void* data, int64_t num_blocks, int block_size, int kv_heads, int head_dim,
                                 const int32_t* rows, int64_t num_rows, const int32_t* blocks, int heads, float scale,
                                 const void* q, int64_t q_stride, void* out, int64_t out_stride) {
  const tapetum::Cache cache{data, num_blocks, block_size, kv_heads, head_dim, dtype};
  tapetum::paged_attention(q, q_stride, cache, {rows, num_rows, blocks}, heads, scale, out, out_stride);
}

TPT_API int64_t tpt_segment_keys_size(const int32_t* bounds, int64_t segments, int heads, int head_dim) {
  return tapetum::segment_keys_size({bounds, segments, heads, head_dim, 0});
}

TPT_API void tpt_segment_keys(int dtype, const int32_t* bounds, int64_t segments, int heads, int head_dim, const void* k,
                              int64_t k_stride, const void* v, int64_t v_stride, void* keys) {
  tapetum::segment_keys({bounds, segments, heads, head_dim, dtype}, k, k_stride, v, v_stride, keys);
}

TPT_API void tpt_segment_attention(int dtype, const int32_t* bounds, int64_t segments, int heads, int head_dim,
                                   const void* keys, const void* q, int64_t q_stride, int64_t first, int64_t length,
                                   float scale, void* out, int64_t out_stride) {
  tapetum::segment_attention({bounds, segments, heads, head_dim, dtype}, keys, q, q_stride, first, length, scale, out,
                             out_stride);
}
