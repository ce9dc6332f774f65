// Attention of some query rows: tile by tile over their keys.
#include "attend.h"

#include "element.h"
#include "tile.h"

namespace tapetum {
namespace TPT_ISA {
namespace {

constexpr int kGroups = kTile / kGroup;  // of a tile

template <class T>
struct Work {
  alignas(64) T q[kRows * kQueryStride];
  alignas(64) float scores[kRows * kScoreStride];
  alignas(64) float out[kRows * kOutStride];
  Softmax states[kRows];
  int64_t seen[kRows];
  const T* keys[kGroups];
  const T* values[kGroups];
  alignas(64) T packed[2][kGroups][kGroup * kMaxWidth];  // of blocks that lie plainly; of the last group
};

template <class T>
constexpr T zeros[kMaxWidth] = {};

int padded(int width) { return (width + kGroup - 1) / kGroup * kGroup; }

template <class T>
void take_queries(const Queries& queries, Work<T>& work) {
  const int width = padded(queries.width);
  for (int i = 0; i < queries.count; ++i) {
    const int64_t token = (queries.first + i) / queries.heads, head = (queries.first + i) % queries.heads;
    const T* from = static_cast<const T*>(queries.q) + token * queries.q_stride + head * queries.width;
    T* to = work.q + i * kQueryStride;
    std::copy(from, from + queries.width, to);
    std::fill(to + queries.width, to + width, T(0));
    std::fill_n(work.out + i * kOutStride, width, 0.f);
    work.states[i] = Softmax();
    work.seen[i] = queries.seen + token * queries.step;
  }
}

template <class T>
void give_out(const Queries& queries, const Work<T>& work) {
  for (int i = 0; i < queries.count; ++i) {
    const int64_t token = (queries.first + i) / queries.heads, head = (queries.first + i) % queries.heads;
    T* to = static_cast<T*>(queries.out) + token * queries.out_stride + head * queries.width;
    const float* from = work.out + i * kOutStride;
    const float share = 1.f / sum(load(work.states[i].sums));
    int d = 0;
    for (; d + W <= queries.width; d += W) store(to + d, load(from + d) * all(share));
    for (; d < queries.width; ++d) put(to + d, from[d] * share);
  }
}

// Points at `count` keys from `start` on; what lies behind the last one counts as zeros.
template <class T>
void find_groups(const Keys& keys, int64_t start, int count, Work<T>& work) {
  const T* k = static_cast<const T*>(keys.keys);
  const T* v = static_cast<const T*>(keys.values);
  const int width = keys.width;
  for (int i = 0; i < count; i += kGroup) {
    int64_t token = start + i;
    if (keys.blocks) token = int64_t(keys.blocks[token / keys.block_size]) * keys.block_size + token % keys.block_size;
    work.keys[i / kGroup] = k + token * width;
    work.values[i / kGroup] = v + token * width;
  }
  const int rest = count % kGroup, last = count / kGroup;
  if (!rest || !keys.blocks) return;
  T* copy = work.packed[1][last];  // another owner may have left anything there, even what is not a number
  std::copy_n(work.values[last], kGroup * width, copy);
  for (int token = rest; token < kGroup; ++token)
    put_value(copy, width, token, zeros<T>, width);
  work.values[last] = copy;
}

template <class T>
void pack_groups(const Keys& keys, int64_t start, int count, Work<T>& work) {
  const int width = padded(keys.width);
  for (int g = 0; g * kGroup < count; ++g)
    for (int side = 0; side < 2; ++side) std::fill_n(work.packed[side][g], kGroup * width, T(0));
  for (int i = 0; i < count; ++i) {
    const int64_t block = keys.blocks[(start + i) / keys.block_size];
    const int64_t at = (block * keys.block_size + (start + i) % keys.block_size) * keys.width;
    put_key(work.packed[0][i / kGroup], i % kGroup, static_cast<const T*>(keys.keys) + at, keys.width);
    put_value(work.packed[1][i / kGroup], width, i % kGroup, static_cast<const T*>(keys.values) + at, keys.width);
  }
  for (int g = 0; g * kGroup < count; ++g) work.keys[g] = work.packed[0][g], work.values[g] = work.packed[1][g];
}

template <class T>
void attend_tile(int rows, int64_t start, int count, int width, float factor, Work<T>& work) {
  const int groups = (count + kGroup - 1) / kGroup;
  for (int g = 0; g < groups;) {
    const int beside = groups - g >= kScoreGroups ? kScoreGroups : 1;
    in_parts<kPanel>(rows, [&](int first, auto size) {
      const T* q = work.q + first * kQueryStride;
      float* scores = work.scores + first * kScoreStride + g * kGroup;
      if (beside == kScoreGroups) score<size(), kScoreGroups>(q, work.keys + g, width, scores);
      else score<size(), 1>(q, work.keys + g, width, scores);
    });
    g += beside;
  }
  for (int i = 0; i < rows; ++i) {
    const int seen = int(std::min<int64_t>(work.seen[i] - start, count));
    soften<T>(work.scores + i * kScoreStride, seen, groups * kGroup, factor, work.states[i], work.out + i * kOutStride, width);
  }
  const T* weights = reinterpret_cast<const T*>(work.scores);
  in_parts<kMixVectors>(width / W, [&](int vector, auto vectors) {
    in_parts<kPanel>(rows, [&](int first, auto size) {
      mix<size(), vectors()>(weights + first * kWeightStride<T>, work.values, groups, width, vector * W,
                             work.out + first * kOutStride + vector * W);
    });
  });
}

template <class T>
void attend(const Queries& queries, const Keys& keys) {
  Work<T> work;
  take_queries(queries, work);
  const int64_t last = (queries.first + queries.count - 1) / queries.heads;  // of these tokens it sees the most keys
  const int64_t seen = queries.seen + last * queries.step;
  for (int64_t start = 0; start < seen; start += kTile) {
    const int count = int(std::min<int64_t>(seen - start, kTile));
    if (keys.is_packed) find_groups(keys, start, count, work);
    else pack_groups(keys, start, count, work);
    attend_tile(queries.count, start, count, padded(queries.width), queries.scale * 1.44269504f, work);
  }
  give_out(queries, work);
}

}  // namespace

void attend_float(const Queries& queries, const Keys& keys) { attend<float>(queries, keys); }
void attend_bf16(const Queries& queries, const Keys& keys) { attend<bf16>(queries, keys); }

}  // namespace TPT_ISA
}  // namespace tapetum
