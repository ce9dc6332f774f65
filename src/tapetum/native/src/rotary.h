// Rotary position embedding (Su et al., 2021) with any number of position axes: one axis for text, three for M-RoPE,
// rows and columns for pictures. Pairs of values are the halves of a head: i and i + D / 2.
#pragma once
#include <cstdint>

#include "isa.h"

namespace tapetum {

// Heads [tokens, heads, width] of one dtype; a token's heads are neighbours, tokens lie `stride` values apart.
struct HeadShape {
  int dtype;
  int64_t tokens, heads, width;
  int64_t from_stride, to_stride;
};

// Turn `from` into `to`, which may be the same; cos, sin [tokens, width] of that dtype, sin with the sign of its half.
void rotate(const HeadShape& shape, const void* from, const void* cos, const void* sin, void* to);

// Positions [axes, tokens] -> cos and signed sin [tokens, 2 half]; `axis` and `frequency` [half] of each pair.
struct Turns {
  int dtype;
  int64_t tokens, half;
  const int64_t* positions;
  const int64_t* axis;
  const float* frequency;
  void* cos;
  void* sin;
  float scale = 1.f;  // of both
};
void make_turns(const Turns& turns);

TPT_FOR_ALL_SETS(void rotate_tokens(const HeadShape& shape, const void* from, const void* cos, const void* sin,
                                    void* to);)

}  // namespace tapetum
