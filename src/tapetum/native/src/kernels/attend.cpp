// Attention of some query rows: tile by tile over their keys.
#include "attend.h"

#include "element.h"
#include "tile.h"

namespace tapetum {
namespace TPT_ISA {
namespace {

constexpr int kGroups = kTile / kGroup;  // of a tile

// What some keys give to the rows.
struct Share {
  Softmax* states;
  float* out;  // rows of kOutStride

  void clear(int rows, int width) const {
    for (int i = 0; i < rows; ++i) {
      states[i] = {-std::numeric_limits<float>::infinity(), {}};
      std::fill_n(out + i * kOutStride, width, 0.f);
    }
  }

  void add(const Share& later, int rows, int width) const {
    for (int i = 0; i < rows; ++i)
      fold(later.states[i], later.out + i * kOutStride, states[i], out + i * kOutStride, width);
  }
};

static_assert(sizeof(Softmax) + kOutStride * sizeof(float) == kShareBytes);

Share share_at(void* memory, int rows) {
  Softmax* states = static_cast<Softmax*>(memory);
  return {states, reinterpret_cast<float*>(states + rows)};
}

struct LocalShare {
  Softmax states[kRows];
  alignas(64) float out[kRows * kOutStride];

  Share view() { return {states, out}; }
};

template <class T>
struct Work {
  alignas(64) T q[kRows * kQueryStride];
  alignas(64) float scores[kRows * kScoreStride];
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
    const int64_t token = (queries.first + i) / queries.heads;
    const int64_t own = queries.seen + token * queries.step;
    work.first[i] = queries.window ? std::max<int64_t>(0, own - queries.window) : 0;
    work.seen[i] = queries.reach ? queries.reach[token] : own;
  }
}

template <class T>
void give_out(const Queries& queries, const Share& share) {
  for (int i = 0; i < queries.count; ++i) {
    const int64_t token = (queries.first + i) / queries.heads, head = (queries.first + i) % queries.heads;
    T* to = static_cast<T*>(queries.out) + token * queries.out_stride + head * queries.width;
    const float* from = share.out + i * kOutStride;
    const float whole = 1.f / sum(load(share.states[i].sums));
    int d = 0;
    for (; d + W <= queries.width; d += W) store(to + d, load(from + d) * all(whole));
    for (; d < queries.width; ++d) put(to + d, from[d] * whole);
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
void attend_tile(int rows, int64_t start, int count, int width, float factor, Work<T>& work, const Share& share) {
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
    peaks[i] = seen[i] ? find_peak(work.scores + i * kScoreStride, seen[i], factor) : share.states[i].peak;
  }
  for (int i = 0; i < rows; ++i)
    soften<T>(work.scores + i * kScoreStride, seen[i], groups * kGroup, factor, peaks[i], share.states[i],
              share.out + i * kOutStride, width);
  const T* weights = reinterpret_cast<const T*>(work.scores);
  in_parts<kMixVectors>(width / W, [&](int vector, auto vectors) {
    in_parts<vectors() == kMixVectors ? kWidePanel : kPanel>(rows, [&](int first, auto size) {
      mix<size(), vectors()>(weights + first * kWeightStride<T>, work.groups + groups, groups, width, vector * W,
                             share.out + first * kOutStride + vector * W);
    });
  });
}

// The keys of one stretch that the rows see.
template <class T>
void attend_stretch(const Queries& queries, const Keys& keys, int64_t stretch, Work<T>& work, const Share& share) {
  const int width = padded(queries.width);
  share.clear(queries.count, width);
  const int64_t first = std::max(stretch * queries.stretch, *std::min_element(work.first, work.first + queries.count));
  const int64_t all_seen = *std::max_element(work.seen, work.seen + queries.count);
  const int64_t seen = std::min((stretch + 1) * queries.stretch, all_seen);
  for (int64_t start = first / kGroup * kGroup, end; start < seen; start = end) {
    end = std::min(seen, (start / kTile + 1) * kTile);  // tiles lie at multiples of kTile, wherever a window begins
    const int count = int(end - start);
    if (keys.is_packed) find_groups(keys, start, count, all_seen, work);
    else pack_groups(keys, start, count, work);
    attend_tile(queries.count, start, count, width, queries.scale * 1.44269504f, work, share);
  }
}

template <class T>
void attend(const Queries& queries, const Keys& keys) {
  Work<T> work;
  LocalShare whole, later;
  take_queries(queries, work);
  const Stretches stretches = stretches_of(queries);
  attend_stretch(queries, keys, stretches.first, work, whole.view());
  for (int64_t stretch = stretches.first + 1; stretch < stretches.end; ++stretch) {
    attend_stretch(queries, keys, stretch, work, later.view());
    whole.view().add(later.view(), queries.count, padded(queries.width));
  }
  give_out<T>(queries, whole.view());
}

template <class T>
void attend_stretch(const Queries& queries, const Keys& keys, int64_t stretch, void* share) {
  Work<T> work;
  take_queries(queries, work);
  attend_stretch(queries, keys, stretch, work, share_at(share, queries.count));
}

template <class T>
void join(const Queries& queries, void* shares) {
  const Share whole = share_at(shares, queries.count);
  char* at = static_cast<char*>(shares);
  for (int64_t i = stretches_of(queries).count() - 1; i; --i) {
    at += queries.count * kShareBytes;
    whole.add(share_at(at, queries.count), queries.count, padded(queries.width));
  }
  give_out<T>(queries, whole);
}

}  // namespace

void attend_float(const Queries& queries, const Keys& keys) { attend<float>(queries, keys); }
void attend_bf16(const Queries& queries, const Keys& keys) { attend<bf16>(queries, keys); }

void attend_stretch_float(const Queries& queries, const Keys& keys, int64_t stretch, void* share) {
  attend_stretch<float>(queries, keys, stretch, share);
}

void attend_stretch_bf16(const Queries& queries, const Keys& keys, int64_t stretch, void* share) {
  attend_stretch<bf16>(queries, keys, stretch, share);
}

void join_float(const Queries& queries, void* shares) { join<float>(queries, shares); }
void join_bf16(const Queries& queries, void* shares) { join<bf16>(queries, shares); }

}  // namespace TPT_ISA
}  // namespace tapetum
