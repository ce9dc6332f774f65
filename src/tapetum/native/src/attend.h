// The kernel of attention, once for each instruction set: query rows that share keys.
#pragma once
#include <algorithm>
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
  int64_t stretch = kStretch;  // keys
};

// The stretches [first, end) in which the keys lie that some of the rows see.
struct Stretches {
  int64_t first, end;

  int64_t count() const { return end - first; }
};

inline Stretches stretches_of(const Queries& queries) {
  const int64_t first = queries.first / queries.heads, last = (queries.first + queries.count - 1) / queries.heads;
  const int64_t lowest = queries.window ? queries.seen + first * queries.step - queries.window : 0;
  int64_t seen = queries.seen + last * queries.step;
  if (queries.reach) seen = *std::max_element(queries.reach + first, queries.reach + last + 1);
  return {std::max<int64_t>(0, lowest) / queries.stretch, (seen + queries.stretch - 1) / queries.stretch};
}

// What one stretch gives to the rows, where several threads share the stretches: kShareBytes for each row.
constexpr int64_t kShareBytes = 2 * 64 + (kMaxWidth + 16) * 4;

// `attend` goes through all keys. So do `attend_stretch` for each of the stretches, in any order, and then `join`.
TPT_FOR_ALL_SETS(void attend_float(const Queries&, const Keys&);
                 void attend_bf16(const Queries&, const Keys&);
                 void attend_stretch_float(const Queries&, const Keys&, int64_t stretch, void* share);
                 void attend_stretch_bf16(const Queries&, const Keys&, int64_t stretch, void* share);
                 void join_float(const Queries&, void* shares);
                 void join_bf16(const Queries&, void* shares);)

}  // namespace tapetum
