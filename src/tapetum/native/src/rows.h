// Rows shared out to the threads, some at a time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "pool.h"

namespace tapetum {

constexpr int64_t kPieceValues = 32768;  // of a piece of work: about as long as it takes to wake a thread

inline int64_t size_of(int dtype) { return dtype ? 2 : 4; }

// `work(first, count)` for all rows, each of them in one call.
template <class Work>
void for_rows(int64_t rows, int64_t width, const Work& work) {
  const int64_t step = std::max<int64_t>(1, kPieceValues / std::max<int64_t>(1, width));
  parallel_for((rows + step - 1) / step,
               [&](int64_t piece) { work(piece * step, std::min(step, rows - piece * step)); });
}

}  // namespace tapetum
