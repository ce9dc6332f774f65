// The kernel of attention, once for each instruction set: query rows that share keys.
#pragma once
#include <cstdint>

#include "attention.h"

namespace tapetum {

constexpr int kRows = 32;  // query rows of a piece of work

// Keys and values of one head: in blocks of S tokens as in `Cache`, or, without block ids, in groups one behind the
// other.
struct Keys {
  const void* keys;
  const void* values;
  const int32_t* blocks;
  int block_size, width;
  bool is_packed;
};

// Rows [first, first + count) of T tokens x G heads: row i is head i % G of token i / G. Token t sees
// `seen` + t * `step` keys, or `reach[t]` where that is given, without those that lie `window` or more before the last
// of the `seen`, where that is not 0. Its head h lies at t * stride + h * D.
struct Queries {
  const void* q;
  void* out;
  int64_t q_stride, out_stride;
  int64_t seen;
  int step, heads, width;
  int64_t first;
  int count;
  float scale;
  const int32_t* reach = nullptr;
  int window = 0;
};

TPT_FOR_ALL_SETS(void attend_float(const Queries&, const Keys&); void attend_bf16(const Queries&, const Keys&);)

}  // namespace tapetum
