// Rows of a picture dealt out to patches in merge order, as the encoder reads them.
#pragma once
#include <cstdint>

namespace tapetum {

// Patches of one step of time: [block row, block column, merge, merge, colour, fold, patch, patch] bytes.
struct PatchGrid {
  int64_t width;  // pixels, a multiple of patch x merge
  int64_t patch;  // pixels of a side
  int64_t merge;  // patches of a block's side
  int64_t fold;   // frames that share a patch

  // Row `y` of a frame, a plane of `width` bytes for each colour. `patches` is where the frame begins in the first patch.
  void put_row(int64_t y, const uint8_t* const (&colours)[3], uint8_t* patches) const;
};

}  // namespace tapetum
