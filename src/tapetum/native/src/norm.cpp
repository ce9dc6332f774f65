#include "norm.h"

#include "api.h"
#include "rows.h"

namespace tapetum {

void rms_norm(const NormShape& shape, const void* x, const void* weight, int64_t rows, void* out) {
  const int64_t bytes = shape.width * size_of(shape.dtype);
  for_rows(rows, shape.width, [&](int64_t first, int64_t count) {
    TPT_CHOOSE(rms_norm_rows)
    (shape, static_cast<const char*>(x) + first * bytes, weight, count, static_cast<char*>(out) + first * bytes);
  });
}

void rms_norm_heads(const NormShape& shape, void* x, const void* weight, int64_t tokens, int64_t heads,
                    int64_t stride) {
  const int64_t bytes = stride * size_of(shape.dtype);
  for_rows(tokens, heads * shape.width, [&](int64_t first, int64_t count) {
    for (int64_t token = first; token < first + count; ++token) {
      char* at = static_cast<char*>(x) + token * bytes;
      TPT_CHOOSE(rms_norm_rows)(shape, at, weight, heads, at);
    }
  });
}

void layer_norm(const NormShape& shape, const void* x, const void* weight, const void* bias, int64_t rows, void* out) {
  const int64_t bytes = shape.width * size_of(shape.dtype);
  for_rows(rows, shape.width, [&](int64_t first, int64_t count) {
    TPT_CHOOSE(layer_norm_rows)
    (shape, static_cast<const char*>(x) + first * bytes, weight, bias, count, static_cast<char*>(out) + first * bytes);
  });
}

}  // namespace tapetum

TPT_API void tpt_rms_norm(int dtype, const void* x, const void* weight, int has_wide_weight, float eps, int64_t rows,
                          int64_t width, void* out) {
  tapetum::rms_norm({dtype, width, eps, has_wide_weight}, x, weight, rows, out);
}

TPT_API void tpt_layer_norm(int dtype, const void* x, const void* weight, const void* bias, float eps, int64_t rows,
                            int64_t width, void* out) {
  tapetum::layer_norm({dtype, width, eps}, x, weight, bias, rows, out);
}
