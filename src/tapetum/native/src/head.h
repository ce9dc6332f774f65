// The last layer: scores of the vocabulary, and the best tokens of each row found in the same pass.
#pragma once
#include <cstdint>

#include "gemm.h"

namespace tapetum {

struct HeadRows {
  const void* x;  // [rows, inputs], of the weight's dtype
  int64_t ldx, rows;
  int scores_dtype;
  void* scores;  // [rows, outputs] in scores_dtype, or null where only the best are wanted
  int64_t lds;
  int64_t num_best;    // few: a list is kept in order by moving its entries
  float* best_scores;  // [rows, num_best], from the best down; of equal scores the lowest id comes first
  int64_t* best_ids;   // -1 where the score is not finite; NaN counts as the highest score
};

// The best are those of the rounded scores. Rows have the same bits in every company, as in `linear`.
void head(const Weight& weight, const HeadRows& rows);

TPT_FOR_ALL_SETS(void head_rows(const Weight& weight, const HeadRows& rows);)

}  // namespace tapetum
