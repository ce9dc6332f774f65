#include "gemm.h"

#include "api.h"

namespace tapetum {

void linear(const Weight& weight, const void* x, int64_t ldx, int64_t rows, const void* residual, int64_t ldr, void* out,
            int64_t ldo) {
  if (rows > 0) TPT_CHOOSE(linear_rows)(weight, {x, ldx, rows, residual, ldr, out, ldo});
}

}  // namespace tapetum

TPT_API void tpt_linear(const tapetum::Weight* weight, const void* x, int64_t ldx, int64_t rows, const void* residual,
                        int64_t ldr, void* out, int64_t ldo) {
  tapetum::linear(*weight, x, ldx, rows, residual, ldr, out, ldo);
}
