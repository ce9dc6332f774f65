// Normalisation of packed rows [rows, width]. A row's values depend on nothing but the row.
#pragma once
#include <cstdint>

#include "isa.h"

namespace tapetum {

struct NormShape {
  int dtype;
  int64_t width;
  float eps;
  int has_wide_weight = 0;  // float32, whatever the dtype of the rows
};

// The root-mean-square norm (Zhang and Sennrich, 2019); the normalised value is rounded before a weight of its dtype,
// not before a wide one. `out` may be `x`.
void rms_norm(const NormShape& shape, const void* x, const void* weight, int64_t rows, void* out);

// The same of each of `heads` neighbours of a token, in place; tokens lie `stride` values apart.
void rms_norm_heads(const NormShape& shape, void* x, const void* weight, int64_t tokens, int64_t heads, int64_t stride);

// Layer normalisation (Ba et al., 2016), rounded once.
void layer_norm(const NormShape& shape, const void* x, const void* weight, const void* bias, int64_t rows, void* out);

TPT_FOR_ALL_SETS(void rms_norm_rows(const NormShape& shape, const void* x, const void* weight, int64_t rows, void* out);
                 void layer_norm_rows(const NormShape& shape, const void* x, const void* weight, const void* bias,
                                      int64_t rows, void* out);)

}  // namespace tapetum
