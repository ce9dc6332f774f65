// One tile of attention: scores of some query rows over some groups of keys, their softmax, and the mix of the values.
//
// Rows are queries that share keys. Buffers have rows of fixed strides, chosen so that rows do not fall on the same
// cache sets. Every number of the results is one chain over D (scores) or over the keys (mix), whatever the panels.
#pragma once
#include <algorithm>
#include <limits>

#include "attention.h"
#include "vec.h"

namespace tapetum {
namespace TPT_ISA {

#if defined(__AVX512BF16__)
constexpr int kPanel = 6;  // rows of a panel: with the vectors below it fills the registers
constexpr int kScoreGroups = 4;  // groups of keys beside each other
constexpr int kMixVectors = 5;  // vectors of D beside each other
constexpr int kWidePanel = 5;  // rows of a panel with so many
#else
constexpr int kPanel = 4;
constexpr int kScoreGroups = 1;
constexpr int kMixVectors = 2;
constexpr int kWidePanel = 4;
#endif
constexpr int kAhead = 8;  // groups
constexpr int kVectors = kGroup / W;  // of a group
constexpr int kScoreStride = kTile + 16;  // floats
constexpr int kOutStride = kMaxWidth + 16;  // floats
constexpr int kQueryStride = kMaxWidth + 32;  // elements
template <class T>
constexpr int kElements = 4 / sizeof(T);  // of one operand lane
template <class T>
constexpr int kWeightStride = kScoreStride * kElements<T>;  // the weights take the place of the scores

inline Pairs operand(const bf16* p) { return load_pairs(p); }
inline Vec operand(const float* p) { return load(p); }
inline Pairs spread(const bf16* p) { return all_pairs(p); }
inline Vec spread(const float* p) { return all(*p); }
inline Vec dot(Vec acc, Vec a, Vec b) { return fma(a, b, acc); }

// Into the second level only: the first one waits for few lines at a time, memory is then read a third faster.
inline void call_for(const void* p) { __builtin_prefetch(p, 0, 2); }

// Calls `work(size)` with a compile-time size.
template <int MAX, class Work>
inline void with_size(int size, const Work& work) {
  if constexpr (MAX > 0) {
    if (size == MAX) work(std::integral_constant<int, MAX>());
    else with_size<MAX - 1>(size, work);
  }
}

// Splits `count` into parts of at most MAX that differ by one at most: `work(first, compile-time size)`.
template <int MAX, class Work>
inline void in_parts(int count, const Work& work) {
  for (int first = 0, parts = (count + MAX - 1) / MAX; parts > 0; --parts) {
    const int size = (count - first + parts - 1) / parts;
    with_size<MAX>(size, [&](auto constant) { work(first, constant); });
    first += size;
  }
}

// scores [M, 16 N] = q [M, D] times N groups of keys; those kAhead groups further are called into the cache meanwhile.
template <int M, int N, class T>
inline void score(const T* q, const T* const* keys, int width, float* scores) {
  Vec sums[M][N][kVectors];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n)
      for (int v = 0; v < kVectors; ++v) sums[m][n][v] = zero();
  for (int d = 0; d < width; d += kElements<T>)
    for (int v = 0; v < kVectors; ++v) {
      decltype(operand(q)) columns[N];
      for (int n = 0; n < N; ++n) {
        columns[n] = operand(keys[n] + d * kGroup + v * W * kElements<T>);
        call_for(keys[n + kAhead] + d * kGroup + v * W * kElements<T>);
      }
      for (int m = 0; m < M; ++m) {
        const auto value = spread(q + m * kQueryStride + d);
        for (int n = 0; n < N; ++n) sums[m][n][v] = dot(sums[m][n][v], value, columns[n]);
      }
    }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n)
      for (int v = 0; v < kVectors; ++v) store(scores + m * kScoreStride + n * kGroup + v * W, sums[m][n][v]);
}

// out [M, N W] += weights [M, 16 groups] times as many values.
template <int M, int N, class T>
inline void mix(const T* weights, const T* const* values, int groups, int width, int first, float* out) {
  Vec sums[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[m][n] = load(out + m * kOutStride + n * W);
  for (int g = 0; g < groups; ++g) {
    const T* from = values[g] + first * kElements<T>;
    const T* ahead = values[g + kAhead] + first * kElements<T>;
    for (int k = 0; k < kGroup; k += kElements<T>, from += width * kElements<T>, ahead += width * kElements<T>) {
      decltype(operand(from)) columns[N];
      for (int n = 0; n < N; ++n) {
        columns[n] = operand(from + n * W * kElements<T>);
        call_for(ahead + n * W * kElements<T>);
      }
      for (int m = 0; m < M; ++m) {
        const auto weight = spread(weights + m * kWeightStride<T> + g * kGroup + k);
        for (int n = 0; n < N; ++n) sums[m][n] = dot(sums[m][n], weight, columns[n]);
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) store(out + m * kOutStride + n * W, sums[m][n]);
}

// 2^x for x up to 127, to 1e-7 for float32 and 3e-6 for what is rounded to bfloat16; 0 from -150 down.
template <class T>
inline Vec power(Vec x) {
  constexpr bool is_exact = sizeof(T) == 4;
  const Vec low = max(x, all(-160.f));
  const Vec n = round(low);
  const Vec r = low - n;
  Vec p;
  if constexpr (is_exact) {
    p = fma(all(1.3276472e-3f), r, all(9.6755410e-3f));
    p = fma(p, r, all(5.5507131e-2f));
    p = fma(p, r, all(2.4022120e-1f));
    p = fma(p, r, all(6.9314694e-1f));
    p = fma(p, r, all(1.0000001f));
  } else {
    p = fma(all(9.5701021e-3f), r, all(5.5917859e-2f));
    p = fma(p, r, all(2.4024744e-1f));
    p = fma(p, r, all(6.9312179e-1f));
    p = fma(p, r, all(0.9999993f));
  }
  return scale(p, n);
}

// The softmax of one row so far: the highest score, times the factor that makes e^x of it 2^x, and the sum of weights.
struct Softmax {
  float peak;
  alignas(64) float sums[W];
};

// The highest of the first `keys` scores, times `factor`; what fills up their last vector becomes -inf.
inline float find_peak(float* scores, int keys, float factor) {
  int i = keys;
  for (; i % W; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  Vec top = load(scores);
  for (int at = W; at < i; at += W) top = max(top, load(scores + at));
  return highest(top) * factor;
}

// Scores of `keys` keys -> weights, zeros from there to `end`. A new peak scales what was summed before.
template <class T>
inline void soften(float* scores, int keys, int end, float factor, float peak, Softmax& state, float* out, int width) {
  T* weights = reinterpret_cast<T*>(scores);
  Vec sums = load(state.sums);
  if (peak > state.peak) {
    const Vec kept = power<float>(all(state.peak - peak));
    sums = sums * kept;
    for (int d = 0; d < width; d += W) store(out + d, load(out + d) * kept);
    state.peak = peak;
  }
  const Vec shift = all(-state.peak);
  int i = 0;
  for (; i < keys; i += W) {
    const Vec weight = power<T>(fma(load(scores + i), all(factor), shift));
    sums = sums + weight;
    store(weights + i, weight);
  }
  store(state.sums, sums);
  for (; i < end; i += W) store(weights + i, zero());
}

// Adds to what earlier keys give to a row what later ones do.
inline void fold(const Softmax& later, const float* from, Softmax& state, float* out, int width) {
  if (later.peak > state.peak) {
    const Vec kept = power<float>(all(state.peak - later.peak));
    store(state.sums, fma(load(state.sums), kept, load(later.sums)));
    for (int d = 0; d < width; d += W) store(out + d, fma(load(out + d), kept, load(from + d)));
    state.peak = later.peak;
  } else if (later.peak > -std::numeric_limits<float>::infinity()) {
    const Vec kept = power<float>(all(later.peak - state.peak));
    store(state.sums, fma(load(later.sums), kept, load(state.sums)));
    for (int d = 0; d < width; d += W) store(out + d, fma(load(from + d), kept, load(out + d)));
  }
}

}  // namespace TPT_ISA
}  // namespace tapetum
