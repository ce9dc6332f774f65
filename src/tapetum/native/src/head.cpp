#include "head.h"

#include "api.h"

namespace tapetum {

void head(const Weight& weight, const HeadRows& rows) {
  if (rows.rows > 0) TPT_CHOOSE(head_rows)(weight, rows);
}

}  // namespace tapetum

TPT_API void tpt_head(const tapetum::Weight* weight, const void* x, int64_t ldx, int64_t rows, int scores_dtype,
                      void* scores, int64_t lds, int64_t num_best, float* best_scores, int64_t* best_ids) {
  tapetum::head(*weight, {x, ldx, rows, scores_dtype, scores, lds, num_best, best_scores, best_ids});
}
