// Bicubic resize on uint8, bit for bit that of Pillow, as kernels see it: sums of bytes over groups of four taps.
//
// Pillow weighs with whole numbers of 22 fractional bits, adds them up exactly in 32 bits and rounds once in each of two
// passes: first across every row, then down the columns. The order of an exact sum does not matter, so taps can be
// taken four at a time: a lane of 32 bits holds the bytes of four taps.
//
//   across  four rows at once: pixels of 4 bytes (R, G, B, unused) of each -> lane (x, colour) = the bytes of the rows
//   down    lanes of the row groups below one another -> one row of pixels of 4 bytes
//   split   such a row -> one row of each colour
#pragma once
#include <cstdint>

#include "isa.h"

namespace tapetum {

constexpr int kTaps = 4;           // of a group: bytes of a lane
constexpr int kPrecisionBits = 22; // of a weight
constexpr int kPixelBytes = 4;     // of a source pixel that `across` reads
constexpr int kCellBytes = 16;     // of four rows of one pixel, in lanes
constexpr int kPixelStep = 4;      // pixels that `down` and `split` make at a time

struct Weights {  // of a group, in the form that an instruction set wants
  uint32_t word[4];
};

struct ResizeKernels {
  Weights (*pack)(const int32_t (&weights)[kTaps]);

  // starts: the first source pixel of each of `width` results; weights: `groups` of each. Writes `width` cells.
  void (*across)(const uint8_t* const (&rows)[kTaps], const int32_t* starts, const Weights* weights, int groups,
                 int64_t width, uint8_t* cells);

  // cells: `groups` rows of them. `row` has room for a multiple of kPixelStep pixels.
  void (*down)(const uint8_t* const* cells, const Weights* weights, int groups, int64_t width, uint8_t* row);

  // Rows with room for a multiple of kPixelStep pixels, all of them.
  void (*split)(const uint8_t* row, int64_t width, uint8_t* const (&colours)[3]);
};

TPT_FOR_ALL_SETS(extern const ResizeKernels resize_kernels;)

}  // namespace tapetum
