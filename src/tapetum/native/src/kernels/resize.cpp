// The two passes of the resize. `Sums` are 16 exact sums of 32 bits; an instruction set differs in how it adds to them.
#include "resize.h"

#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tapetum {
namespace TPT_ISA {
namespace {

constexpr int32_t kHalf = 1 << (kPrecisionBits - 1);

#if defined(__AVX2__)
// Where the bytes of a turned square of 4 x 4 come from.
__m128i turn() { return _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); }
#endif

#if defined(__AVX512VNNI__)

// A weight in three signed digits of 8 bits, each with its own sum: w = d[2] 2^16 + d[1] 2^8 + d[0].
Weights pack(const int32_t (&weights)[kTaps]) {
  Weights packed{};
  for (int tap = 0; tap < kTaps; ++tap) {
    int32_t rest = weights[tap];
    for (int digit = 0; digit < 3; ++digit) {
      const int8_t low = int8_t(rest & 0xff);
      packed.word[digit] |= uint32_t(uint8_t(low)) << (8 * tap);
      rest = (rest - low) >> 8;
    }
  }
  return packed;
}

struct Lanes {
  __m512i v;
};

Lanes load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }

Lanes load_turned(const uint8_t* const (&rows)[kTaps], int64_t at) {
  const auto part = [&](int row) { return _mm_loadu_si128((const __m128i*)(rows[row] + at)); };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(part(0)), part(1), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(part(2)), part(3), 1);
  const __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  return {_mm512_shuffle_epi8(all, _mm512_broadcast_i32x4(turn()))};
}

struct Sums {
  __m512i digit[3] = {_mm512_set1_epi32(kHalf), _mm512_setzero_si512(), _mm512_setzero_si512()};

  void add(Lanes bytes, const Weights& weights) {
    for (int i = 0; i < 3; ++i)
      digit[i] = _mm512_dpbusd_epi32(digit[i], bytes.v, _mm512_set1_epi32(int32_t(weights.word[i])));
  }

  __m128i levels() const {
    const __m512i upper = _mm512_add_epi32(digit[1], _mm512_slli_epi32(digit[2], 8));
    const __m512i all = _mm512_add_epi32(digit[0], _mm512_slli_epi32(upper, 8));
    const __m512i whole = _mm512_srai_epi32(all, kPrecisionBits);
    return _mm512_cvtusepi32_epi8(_mm512_max_epi32(whole, _mm512_setzero_si512()));
  }
};

#elif defined(__AVX2__)

// A weight as hi 2^12 + lo in 16 bits each: words are (hi of taps 0 and 2), (hi of 1 and 3), and so the lo.
Weights pack(const int32_t (&weights)[kTaps]) {
  const auto pair = [](int32_t a, int32_t b) { return uint32_t(a & 0xffff) | uint32_t(b) << 16; };
  const auto hi = [&](int tap) { return weights[tap] >> 12; };
  const auto lo = [&](int tap) { return weights[tap] & 0xfff; };
  return {{pair(hi(0), hi(2)), pair(hi(1), hi(3)), pair(lo(0), lo(2)), pair(lo(1), lo(3))}};
}

struct Lanes {
  __m256i v[2];
};

Lanes load(const uint8_t* p) {
  return {{_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))}};
}

Lanes load_turned(const uint8_t* const (&rows)[kTaps], int64_t at) {
  const auto part = [&](int row) { return _mm_loadu_si128((const __m128i*)(rows[row] + at)); };
  const auto both = [&](int row) {
    const __m256i two = _mm256_inserti128_si256(_mm256_castsi128_si256(part(row)), part(row + 1), 1);
    return _mm256_shuffle_epi8(two, _mm256_broadcastsi128_si256(turn()));
  };
  return {{both(0), both(2)}};
}

struct Sums {
  __m256i hi[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  __m256i lo[2] = {_mm256_set1_epi32(kHalf), _mm256_set1_epi32(kHalf)};

  void add(Lanes bytes, const Weights& weights) {
    const auto all = [&](int i) { return _mm256_set1_epi32(int32_t(weights.word[i])); };
    const auto two = [](__m256i even, __m256i we, __m256i odd, __m256i wo) {
      return _mm256_add_epi32(_mm256_madd_epi16(even, we), _mm256_madd_epi16(odd, wo));
    };
    const __m256i low_bytes = _mm256_set1_epi16(0xff);
    for (int half = 0; half < 2; ++half) {
      const __m256i even = _mm256_and_si256(bytes.v[half], low_bytes);
      const __m256i odd = _mm256_srli_epi16(bytes.v[half], 8);
      hi[half] = _mm256_add_epi32(hi[half], two(even, all(0), odd, all(1)));
      lo[half] = _mm256_add_epi32(lo[half], two(even, all(2), odd, all(3)));
    }
  }

  __m128i levels() const {
    const auto whole = [&](int half) {
      const __m256i sum = _mm256_add_epi32(lo[half], _mm256_slli_epi32(hi[half], 12));
      return _mm256_srai_epi32(sum, kPrecisionBits);
    };
    // Packing works within halves of a register: lanes come out as 0 to 3, 8 to 11, 4 to 7, 12 to 15.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole(0), whole(1)), 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
};

#else

Weights pack(const int32_t (&weights)[kTaps]) {
  Weights packed;
  memcpy(packed.word, weights, sizeof packed.word);
  return packed;
}

struct Lanes {
  uint8_t v[kTaps][16];
};

// Four squares of four taps, each of four bytes that lie together.
template <class Place>
Lanes gathered(const Place& place) {
  Lanes lanes;
  for (int square = 0; square < 4; ++square)
    for (int tap = 0; tap < kTaps; ++tap) memcpy(lanes.v[tap] + 4 * square, place(square) + 4 * tap, 4);
  return lanes;
}

Lanes load(const uint8_t* p) {
  return gathered([&](int pixel) { return p + pixel * kCellBytes; });
}

Lanes load_turned(const uint8_t* const (&rows)[kTaps], int64_t at) {
  return gathered([&](int row) { return rows[row] + at; });
}

struct Levels {
  uint8_t v[16];
};

struct Sums {
  uint32_t v[16] = {};  // wraps, as the partial sums of the other sets do; the whole fits

  void add(const Lanes& bytes, const Weights& weights) {
    for (int tap = 0; tap < kTaps; ++tap)
      for (int i = 0; i < 16; ++i) v[i] += bytes.v[tap][i] * weights.word[tap];
  }

  Levels levels() const {
    Levels levels;
    for (int i = 0; i < 16; ++i) {
      const int32_t whole = int32_t(v[i] + kHalf) >> kPrecisionBits;
      levels.v[i] = uint8_t(whole < 0 ? 0 : whole > 255 ? 255 : whole);
    }
    return levels;
  }
};

#endif

#if defined(__AVX2__)
__m128i turned(__m128i square) { return _mm_shuffle_epi8(square, turn()); }
__m128i as_cell(__m128i square) { return turned(square); }
__m128i load_square(const uint8_t* p) { return _mm_loadu_si128((const __m128i*)p); }
void store(uint8_t* p, __m128i square) { _mm_storeu_si128((__m128i*)p, square); }
#else
Levels turned(const Levels& square) {
  Levels other;
  for (int i = 0; i < 16; ++i) other.v[i] = square.v[i % 4 * 4 + i / 4];
  return other;
}
const Levels& as_cell(const Levels& square) { return square; }  // bytes of a tap together: there is no wide load
Levels load_square(const uint8_t* p) {
  Levels square;
  memcpy(square.v, p, sizeof square.v);
  return square;
}
void store(uint8_t* p, const Levels& square) { memcpy(p, square.v, sizeof square.v); }
#endif

void across(const uint8_t* const (&rows)[kTaps], const int32_t* starts, const Weights* weights, int groups,
            int64_t width, uint8_t* cells) {
  for (int64_t x = 0; x < width; ++x, weights += groups) {
    Sums sums;
    const int64_t at = int64_t(starts[x]) * kPixelBytes;
    for (int group = 0; group < groups; ++group)
      sums.add(load_turned(rows, at + group * kTaps * kPixelBytes), weights[group]);
    store(cells + x * kCellBytes, as_cell(sums.levels()));
  }
}

void down(const uint8_t* const* cells, const Weights* weights, int groups, int64_t width, uint8_t* row) {
  for (int64_t x = 0; x < width; x += kPixelStep) {
    Sums sums;
    for (int group = 0; group < groups; ++group) sums.add(load(cells[group] + x * kCellBytes), weights[group]);
    store(row + x * kPixelBytes, sums.levels());
  }
}

void split(const uint8_t* row, int64_t width, uint8_t* const (&colours)[3]) {
  for (int64_t x = 0; x < width; x += kPixelStep) {
    uint8_t planes[16];
    store(planes, turned(load_square(row + x * kPixelBytes)));
    for (int colour = 0; colour < 3; ++colour) memcpy(colours[colour] + x, planes + colour * kPixelStep, kPixelStep);
  }
}

}  // namespace

const ResizeKernels resize_kernels = {pack, across, down, split};

}  // namespace TPT_ISA
}  // namespace tapetum
