// Vectors of the instruction set that a kernel file is compiled for. W lanes of float32; pairs of bfloat16 beside.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tapetum {
namespace TPT_ISA {

using bf16 = uint16_t;

inline float widen(bf16 x) {
  uint32_t bits = uint32_t(x) << 16;
  float wide;
  memcpy(&wide, &bits, 4);
  return wide;
}

inline bf16 narrow(float x) {  // to nearest, ties to even; a NaN stays one
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return bf16((bits >> 16) | 0x40);
  return bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX512BF16__)

constexpr int W = 16;
struct Vec {
  __m512 v;
};
struct Pairs {  // 2 W bfloat16: lane i holds elements 2 i and 2 i + 1
  __m512i v;
};
inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec all(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const bf16* p) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void store(bf16* p, Vec a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v)); }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a b + c
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, 0)}; }
inline Vec scale(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }  // a 2^n, n whole
inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float highest(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline Pairs load_pairs(const bf16* p) { return {_mm512_loadu_si512(p)}; }
inline Pairs all_pairs(const bf16* p) {  // the pair at p in every lane
  int32_t pair;
  memcpy(&pair, p, 4);
  return {_mm512_set1_epi32(pair)};
}
inline Vec dot(Vec acc, Pairs a, Pairs b) {  // acc + a[2i] b[2i] + a[2i+1] b[2i+1]
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
}

#else

#if defined(__AVX2__)
constexpr int W = 8;
struct Vec {
  __m256 v;
};
struct Pairs {
  __m256i v;
};
inline Vec zero() { return {_mm256_setzero_ps()}; }
inline Vec all(float x) { return {_mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec load(const bf16* p) {
  return {_mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16))};
}
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Pairs load_pairs(const bf16* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
inline Pairs all_pairs(const bf16* p) {
  int32_t pair;
  memcpy(&pair, p, 4);
  return {_mm256_set1_epi32(pair)};
}
inline Vec low(Pairs a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(a.v, 16))}; }
inline Vec high(Pairs a) {
  return {_mm256_castsi256_ps(_mm256_and_si256(a.v, _mm256_set1_epi32(int32_t(0xffff0000))))};
}
#else
constexpr int W = 4;  // what every 64-bit processor has: the compiler keeps longer ones in memory
typedef float Lanes __attribute__((vector_size(16)));
struct Vec {
  Lanes v;
};
typedef uint32_t Words __attribute__((vector_size(16)));
struct Pairs {
  Words v;
};
inline Vec zero() { return {Lanes{}}; }
inline Vec all(float x) { return {Lanes{} + x}; }
inline Vec load(const float* p) {
  Vec a;
  memcpy(&a.v, p, sizeof a.v);
  return a;
}
inline Vec load(const bf16* p) {
  Vec a;
  for (int i = 0; i < W; ++i) a.v[i] = widen(p[i]);
  return a;
}
inline void store(float* p, Vec a) { memcpy(p, &a.v, sizeof a.v); }
inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }  // rounded twice: the fused one is slow without hardware
inline Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
inline Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
inline Vec round(Vec a) {
  for (int i = 0; i < W; ++i) a.v[i] = std::nearbyintf(a.v[i]);
  return a;
}
inline Pairs load_pairs(const bf16* p) {
  Pairs a;
  memcpy(&a.v, p, sizeof a.v);
  return a;
}
inline Pairs all_pairs(const bf16* p) {
  uint32_t pair;
  memcpy(&pair, p, 4);
  return {Words{} + pair};
}
inline Vec low(Pairs a) { return {(Lanes)(a.v << 16)}; }
inline Vec high(Pairs a) { return {(Lanes)(a.v & 0xffff0000)}; }
#endif

inline Vec dot(Vec acc, Pairs a, Pairs b) { return fma(high(a), high(b), fma(low(a), low(b), acc)); }
inline void store(bf16* p, Vec a) {
  float wide[W];
  store(wide, a);
  for (int i = 0; i < W; ++i) p[i] = narrow(wide[i]);
}
inline float sum(Vec a) {  // in halves, as the wider sets do
  float wide[W];
  store(wide, a);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) wide[i] += wide[i + half];
  return wide[0];
}
inline float highest(Vec a) {
  float wide[W];
  store(wide, a);
  float found = wide[0];
  for (int i = 1; i < W; ++i) found = wide[i] > found ? wide[i] : found;
  return found;
}
#if defined(__AVX2__)
inline Vec scale(Vec a, Vec n) {  // n to 127; a 2^n is 0 from n = -127 down
  const __m256i power = _mm256_cvtps_epi32(max(n, all(-127.f)).v);
  return a * Vec{_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(power, _mm256_set1_epi32(127)), 23))};
}
#else
inline Vec scale(Vec a, Vec n) {  // as above
  float whole[W];
  store(whole, n);
  float factor[W];
  for (int i = 0; i < W; ++i) {
    uint32_t bits = whole[i] < -126.f ? 0 : uint32_t(int32_t(whole[i]) + 127) << 23;
    memcpy(factor + i, &bits, 4);
  }
  return a * load(factor);
}
#endif

#endif

// e^x within 2 units in the last place; 0 below -87.3, as for -inf.
inline Vec exp(Vec x) {
  const Vec floor = all(-87.33654f);
  const Vec low = max(min(x, all(88.37626f)), floor);
  const Vec n = round(low * all(1.44269504f));
  Vec r = fma(n, all(-0.693359375f), low);
  r = fma(n, all(2.12194440e-4f), r);
  Vec p = all(1.9875691500e-4f);
  p = fma(p, r, all(1.3981999507e-3f));
  p = fma(p, r, all(8.3334519073e-3f));
  p = fma(p, r, all(4.1665795894e-2f));
  p = fma(p, r, all(1.6666665459e-1f));
  p = fma(p, r, all(5.0000001201e-1f));
  p = fma(p, r * r, r) + all(1.f);
  const Vec e = scale(p, n);
#if defined(__AVX512BF16__)
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, floor.v, _CMP_NLT_UQ), e.v)};
#elif defined(__AVX2__)
  return {_mm256_and_ps(e.v, _mm256_cmp_ps(x.v, floor.v, _CMP_NLT_UQ))};
#else
  Vec kept = e;
  for (int i = 0; i < W; ++i)
    if (x.v[i] < floor.v[i]) kept.v[i] = 0.f;
  return kept;
#endif
}

}  // namespace TPT_ISA
}  // namespace tapetum
