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
  int64_t first[kRows], seen[kRows];  // keys that a row looks at: [first, seen)
  const T* groups[2 * kGroups + kAhead];  // in the order in which they are read: keys, values, keys of the next tile
  alignas(64) T packed[2][kGroups][kGroup * kMaxWidth];  // of blocks that lie plainly; of the last group
};

template <class T>
constexpr T zeros[kMaxWidth] = {};

int padded(int width) { return (width + kGroup - 1) / kGroup * kGroup; }

template <class T>
const T* query(const Queries& queries, int i) {
  const int64_t token = (queries.first + i) / queries.heads, head = (queries.first + i) % queries.heads;
  return static_cast<const T*>(queries.q) + token * queries.q_stride + head * queries.width;
}

template <class T>
void take_queries(const Queries& queries, Work<T>& work) {
  const int width = padded(queries.width);
  for (int i = 0; i < queries.count; ++i) {  // rows that lie apart: all are called for before the first is waited for
    const T* row = query<T>(queries, i);
    for (int d = 0; d < queries.width; d += 64 / sizeof(T)) __builtin_prefetch(row + d);
  }
  for (int i = 0; i < queries.count; ++i) {
    const T* from = query<T>(queries, i);
    T* to = work.q + i * kQueryStride;
    std::copy(from, from + queries.width, to);
    std::fill(to + queries.width, to + width, T(0));
    std::fill_n(work.out + i * kOutStride, width, 0.f);
    work.states[i] = {-std::numeric_limits<float>::infinity(), {}};
    const int64_t token = (queries.first + i) / queries.heads;
    const int64_t own = queries.seen + token * queries.step;
    work.first[i] = queries.window ? std::max<int64_t>(0, own - queries.window) : 0;
    work.seen[i] = queries.reach ? queries.reach[token] : own;
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

// Where the group of `token` begins, from the first element of its head on.
int64_t find_group(const Keys& keys, int64_t token) {
  if (keys.blocks) token = int64_t(keys.blocks[token / keys.block_size]) * keys.block_size + token % keys.block_size;
  return token * keys.width;
}

// Points at `count` keys from `start` on, and at a few of those that come next, up to `seen`. What lies behind the
// last value that is seen counts as zeros: another owner may have left anything there, even what is not a number.
template <class T>
void find_groups(const Keys& keys, int64_t start, int count, int64_t seen, Work<T>& work) {
  const T* k = static_cast<const T*>(keys.keys);
  const T* v = static_cast<const T*>(keys.values);
  const int groups = (count + kGroup - 1) / kGroup;
  for (int g = 0; g < groups; ++g) {
    const int64_t at = find_group(keys, start + g * kGroup);
    work.groups[g] = k + at;
    work.groups[groups + g] = v + at;
  }
  for (int g = 0; g < kAhead; ++g) {
    const int64_t token = start + count + g * kGroup;
    work.groups[2 * groups + g] = token < seen ? k + find_group(keys, token) : work.groups[groups - 1];
  }
  const int rest = count % kGroup;
  if (!rest || !keys.blocks) return;
  T* copy = work.packed[1][groups - 1];
  std::copy_n(work.groups[2 * groups - 1], kGroup * keys.width, copy);
  for (int token = rest; token < kGroup; ++token) put_value(copy, keys.width, token, zeros<T>, keys.width);
  work.groups[2 * groups - 1] = copy;
}

// The same from blocks that lie plainly.
template <class T>
void pack_groups(const Keys& keys, int64_t start, int count, Work<T>& work) {
  const int width = padded(keys.width), groups = (count + kGroup - 1) / kGroup;
  for (int side = 0; side < 2; ++side)
    for (int g = 0; g < groups; ++g) {
      work.groups[side * groups + g] = work.packed[side][g];
      std::fill_n(work.packed[side][g], kGroup * width, T(0));
    }
  std::fill_n(work.groups + 2 * groups, kAhead, work.packed[0][0]);
  for (int i = 0; i < count; ++i) {
    const int64_t block = keys.blocks[(start + i) / keys.block_size];
    const int64_t at = (block * keys.block_size + (start + i) % keys.block_size) * keys.width;
    put_key(work.packed[0][i / kGroup], i % kGroup, static_cast<const T*>(keys.keys) + at, keys.width);
    put_value(work.packed[1][i / kGroup], width, i % kGroup, static_cast<const T*>(keys.values) + at, keys.width);
  }
}

template <class T>
void attend_tile(int rows, int64_t start, int count, int width, float factor, Work<T>& work) {
  const int groups = (count + kGroup - 1) / kGroup;
  for (int g = 0; g < groups;) {
    const int beside = groups - g >= kScoreGroups ? kScoreGroups : 1;
    in_parts<kPanel>(rows, [&](int first, auto size) {
      const T* q = work.q + first * kQueryStride;
      float* scores = work.scores + first * kScoreStride + g * kGroup;
      if (beside == kScoreGroups) score<size(), kScoreGroups>(q, work.groups + g, width, scores);
      else score<size(), 1>(q, work.groups + g, width, scores);
    });
    g += beside;
  }
  int seen[kRows];
  float peaks[kRows];
  for (int i = 0; i < rows; ++i) {
    const int before = int(std::clamp<int64_t>(work.first[i] - start, 0, count));
    seen[i] = int(std::clamp<int64_t>(work.seen[i] - start, before, count));
    if (seen[i] == before) seen[i] = 0;
    else std::fill_n(work.scores + i * kScoreStride, before, -std::numeric_limits<float>::infinity());
    peaks[i] = seen[i] ? find_peak(work.scores + i * kScoreStride, seen[i], factor) : work.states[i].peak;
  }
  for (int i = 0; i < rows; ++i)
    soften<T>(work.scores + i * kScoreStride, seen[i], groups * kGroup, factor, peaks[i], work.states[i],
              work.out + i * kOutStride, width);
  const T* weights = reinterpret_cast<const T*>(work.scores);
  in_parts<kMixVectors>(width / W, [&](int vector, auto vectors) {
    in_parts<vectors() == kMixVectors ? kWidePanel : kPanel>(rows, [&](int first, auto size) {
      mix<size(), vectors()>(weights + first * kWeightStride<T>, work.groups + groups, groups, width, vector * W,
                             work.out + first * kOutStride + vector * W);
    });
  });
}

template <class T>
void attend(const Queries& queries, const Keys& keys) {
  Work<T> work;
  take_queries(queries, work);
  const int64_t first = *std::min_element(work.first, work.first + queries.count);
  const int64_t seen = *std::max_element(work.seen, work.seen + queries.count);
  for (int64_t start = first / kGroup * kGroup, end; start < seen; start = end) {
    end = std::min(seen, (start / kTile + 1) * kTile);  // tiles lie at multiples of kTile, wherever a window begins
    const int count = int(end - start);
    if (keys.is_packed) find_groups(keys, start, count, seen, work);
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
