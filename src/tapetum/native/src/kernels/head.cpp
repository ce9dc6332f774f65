// Every part of the vocabulary keeps the best of its own for each row; they are joined at the end, parts in order.
#include "head.h"

#include <vector>

#include "gemm_product.h"

namespace tapetum {
namespace TPT_ISA {
namespace {

struct Candidate {
  float score;
  int64_t id;
};

constexpr Candidate kNobody = {-INFINITY, -1};

bool is_above(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

// `best` is in order, from the best down. Who comes later must be above to displace.
void offer(Candidate* best, int64_t count, Candidate found) {
  int64_t place = count;
  while (place > 0 && is_above(found.score, best[place - 1].score)) --place;
  if (place == count) return;
  for (int64_t i = count - 1; i > place; --i) best[i] = best[i - 1];
  best[place] = found;
}

class Keep {
 public:
  Keep(const Weight& weight, const HeadRows& rows, int64_t parts)
      : weight_(weight), rows_(rows), best_(parts * rows.rows * rows.num_best, kNobody) {}

  void operator()(int64_t part, int64_t row, int rows, int64_t group, const float* sums) {
    const int64_t first = group * kGroupColumns, count = std::min(kGroupColumns, weight_.outputs - first);
    for (int r = 0; r < rows; ++r) {
      alignas(64) float scores[kGroupColumns];
      std::copy_n(sums + r * kGroupColumns, kGroupColumns, scores);
      if (weight_.bias)
        for (int64_t i = 0; i < count; ++i) scores[i] += weight_.bias[first + i];
      if (rows_.scores_dtype != 0) {
        bf16 rounded[kGroupColumns];
        for (int64_t i = 0; i < kGroupColumns; i += W) store(rounded + i, load(scores + i));
        for (int64_t i = 0; i < kGroupColumns; i += W) store(scores + i, load(rounded + i));
        write(row + r, first, count, rounded);
      } else {
        write(row + r, first, count, scores);
      }
      if (rows_.num_best) look_at(list(part, row + r), scores, first, count);
    }
  }

  void join(int64_t parts) {
    const int64_t count = rows_.num_best;
    for (int64_t row = 0; row < rows_.rows; ++row) {
      Candidate* best = list(0, row);
      for (int64_t part = 1; part < parts; ++part)
        for (int64_t i = 0; i < count; ++i) offer(best, count, list(part, row)[i]);
      for (int64_t i = 0; i < count; ++i) {
        rows_.best_scores[row * count + i] = best[i].score;
        rows_.best_ids[row * count + i] = std::isfinite(best[i].score) ? best[i].id : -1;
      }
    }
  }

 private:
  Candidate* list(int64_t part, int64_t row) {
    return best_.data() + (part * rows_.rows + row) * rows_.num_best;
  }

  template <class T>
  void write(int64_t row, int64_t first, int64_t count, const T* scores) const {
    if (rows_.scores) std::copy_n(scores, count, static_cast<T*>(rows_.scores) + row * rows_.lds + first);
  }

  void look_at(Candidate* best, const float* scores, int64_t first, int64_t count) const {
    const float least = best[rows_.num_best - 1].score;
    int is_one_above = 0;
    for (int64_t i = 0; i < kGroupColumns; ++i) is_one_above |= !(scores[i] <= least);
    if (!is_one_above) return;
    for (int64_t i = 0; i < count; ++i) offer(best, rows_.num_best, {scores[i], first + i});
  }

  const Weight& weight_;
  const HeadRows& rows_;
  std::vector<Candidate> best_;  // [parts][rows][num_best]
};

template <class E>
void run(const Weight& weight, const HeadRows& rows) {
  const Parts parts = parts_of(weight, rows.rows);
  Keep keep(weight, rows, parts.count);
  multiply_all(Product<E>{weight, static_cast<const typename E::Element*>(rows.x), rows.ldx, rows.rows, parts}, keep);
  if (rows.num_best) keep.join(parts.count);
}

}  // namespace

void head_rows(const Weight& weight, const HeadRows& rows) {
  weight.dtype == 0 ? run<Float32>(weight, rows) : run<Bfloat16>(weight, rows);
}

}  // namespace TPT_ISA
}  // namespace tapetum
