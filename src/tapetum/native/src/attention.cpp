#include "attention.h"

#include <vector>

#include "api.h"
#include "pieces.h"
#include "scratch.h"

namespace tapetum {
namespace {

struct Task {
  Queries queries;
  Keys keys;
};

// The tasks of a step: up to kRows query rows of one row of the step, and one key-value head.
class Step {
 public:
  Step(const Queries& all, const Cache& cache, const Rows& rows) : all_(all), cache_(cache), rows_(rows) {
    for (int64_t i = 0; i < rows.count; ++i)
      tasks_.add(ceil_div(int64_t(rows.rows[4 * i + 1]) * all.heads, kRows) * cache.kv_heads);
  }

  int64_t count() const { return tasks_.count(); }

  Task task(int64_t index) const {
    const int64_t row = tasks_.span_of(index);
    const int32_t* numbers = rows_.rows + 4 * row;
    const int64_t start = numbers[0], rows = int64_t(numbers[1]) * all_.heads;
    const int64_t piece = index - tasks_.before(row), parts = ceil_div(rows, kRows), head = piece / parts;
    const int64_t lane = head * all_.heads * cache_.head_dim;
    Queries queries = all_;
    queries.q = move_by(all_.q, start * all_.q_stride + lane, cache_.dtype);
    queries.out = move_by(all_.out, start * all_.out_stride + lane, cache_.dtype);
    queries.seen = numbers[2] + 1;
    if (rows_.reach) queries.reach = rows_.reach + start;
    choose_part(rows, parts, parts - 1 - piece % parts, queries);  // those with the most keys first
    const int64_t head_size = cache_.num_blocks * cache_.block_size * cache_.head_dim;
    const Keys keys{move_by(cache_.data, head * head_size, cache_.dtype),
                    move_by(cache_.data, (cache_.kv_heads + head) * head_size, cache_.dtype),
                    rows_.blocks + numbers[3], cache_.block_size, cache_.head_dim, cache_.is_packed()};
    return {queries, keys};
  }

 private:
  const Queries& all_;
  const Cache& cache_;
  const Rows& rows_;
  Pieces tasks_;
};

// Whether some threads have much less to do than others where each takes whole tasks.
bool is_uneven(int64_t tasks, int threads) { return ceil_div(tasks, threads) * threads * 8 > tasks * 9; }

// Threads share the stretches of each task too. What these give lies in the scratch of the caller until it is joined.
void attend_shared(int dtype, const Step& step) {
  Pieces stretches;
  std::vector<int64_t> places;  // of the first share of each task
  int64_t bytes = 0;
  for (int64_t i = 0; i < step.count(); ++i) {
    const Queries queries = step.task(i).queries;
    const int64_t count = stretches_of(queries).count();
    stretches.add(count);
    places.push_back(bytes);
    bytes += count * queries.count * kShareBytes;
  }
  char* shares = static_cast<char*>(scratch(bytes));
  stretches.run([&](int64_t index, int64_t stretch) {
    const Task task = step.task(index);
    char* share = shares + places[index] + stretch * task.queries.count * kShareBytes;
    attend_stretch(dtype, task.queries, task.keys, stretches_of(task.queries).first + stretch, share);
  });
  parallel_for(step.count(), [&](int64_t i) { join(dtype, step.task(i).queries, shares + places[i]); });
}

// Whether a row of the step sees more than one stretch, or so it may be.
bool is_long(const Rows& rows) {
  for (int64_t i = 0; i < rows.count; ++i)
    if (rows.rows[4 * i + 1] + rows.rows[4 * i + 2] > kStretch) return true;
  return false;
}

}  // namespace

void paged_attention(const void* q, int64_t q_stride, const Cache& cache, const Rows& rows, int heads, float scale,
                     void* out, int64_t out_stride, int window) {
  const Queries all{q, out, q_stride, out_stride, 0, 1, heads / cache.kv_heads, cache.head_dim, 0, 0, scale,
                    nullptr, window};
  const Step step(all, cache, rows);
  if (is_uneven(step.count(), num_threads()) && is_long(rows)) {
    attend_shared(cache.dtype, step);
    return;
  }
  parallel_for(step.count(), [&](int64_t i) {
    const Task task = step.task(i);
    attend(cache.dtype, task.queries, task.keys);
  });
}

}  // namespace tapetum

TPT_API void tpt_paged_attention(int dtype, void* data, int64_t num_blocks, int block_size, int kv_heads, int head_dim,
                                 const int32_t* rows, int64_t num_rows, const int32_t* blocks, int heads, float scale,
                                 const void* q, int64_t q_stride, void* out, int64_t out_stride,
                                 const int32_t* reach, int window) {
  const tapetum::Cache cache{data, num_blocks, block_size, kv_heads, head_dim, dtype};
  tapetum::paged_attention(q, q_stride, cache, {rows, num_rows, blocks, reach}, heads, scale, out, out_stride, window);
}
