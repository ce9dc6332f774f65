// The weights of a bicubic resize along one axis, as Pillow computes and rounds them.
#pragma once
#include <cstdint>
#include <vector>

namespace tapetum {

struct Taps {  // of one result: it is the weighted sum of the source from `start` on
  int32_t start;
  std::vector<int32_t> weights;  // whole numbers of kPrecisionBits fractional bits; neither end is zero
};

// From `source` to `used` samples; both from 1 to kMaxSide.
std::vector<Taps> bicubic_taps(int32_t source, int32_t used);

constexpr int32_t kMaxSide = 1 << 24;  // above it Pillow's own box, in float32, is no longer exact

}  // namespace tapetum
