// Sums of rows.
#pragma once
#include <cstdint>

#include "isa.h"

namespace tapetum {

// to += from, rounded once: rows [rows, width] of one dtype; from one row to the next it is `width` values in `to`, and
// `stride` in `from`.
void add_rows(int dtype, void* to, const void* from, int64_t stride, int64_t rows, int64_t width);

TPT_FOR_ALL_SETS(void add_values(int dtype, void* to, const void* from, int64_t count);)

}  // namespace tapetum
