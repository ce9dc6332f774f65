// Attention shared out to the threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "attend.h"
#include "pool.h"

namespace tapetum {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Pieces of work of several spans of tokens: `run` calls `work(span, piece of the span)` for each.
class Pieces {
 public:
  void add(int64_t count) { ends_.push_back(this->count() + count); }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }

  template <class Work>
  void run(const Work& work) const {
    parallel_for(count(), [&](int64_t piece) {
      const int64_t span = span_of(piece);
      work(span, piece - before(span));
    });
  }

  int64_t span_of(int64_t piece) const {
    return std::upper_bound(ends_.begin(), ends_.end(), piece) - ends_.begin();
  }

  int64_t before(int64_t span) const { return span ? ends_[span - 1] : 0; }

 private:
  std::vector<int64_t> ends_;  // numbers of pieces up to each span and with it
};

// Part `index` of `parts` near equal ones of `rows` rows.
inline void choose_part(int64_t rows, int64_t parts, int64_t index, Queries& queries) {
  queries.first = rows * index / parts;
  queries.count = int(rows * (index + 1) / parts - queries.first);
}

inline const void* move_by(const void* data, int64_t elements, int dtype) {
  return static_cast<const char*>(data) + elements * (dtype ? 2 : 4);
}

inline void* move_by(void* data, int64_t elements, int dtype) {
  return static_cast<char*>(data) + elements * (dtype ? 2 : 4);
}

inline void attend(int dtype, const Queries& queries, const Keys& keys) {
  if (dtype) TPT_CHOOSE(attend_bf16)(queries, keys);
  else TPT_CHOOSE(attend_float)(queries, keys);
}

inline void attend_stretch(int dtype, const Queries& queries, const Keys& keys, int64_t stretch, void* share) {
  if (dtype) TPT_CHOOSE(attend_stretch_bf16)(queries, keys, stretch, share);
  else TPT_CHOOSE(attend_stretch_float)(queries, keys, stretch, share);
}

inline void join(int dtype, const Queries& queries, void* shares) {
  if (dtype) TPT_CHOOSE(join_bf16)(queries, shares);
  else TPT_CHOOSE(join_float)(queries, shares);
}

}  // namespace tapetum
