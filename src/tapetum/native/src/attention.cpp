#include "attention.h"

#include "api.h"
#include "pieces.h"

namespace tapetum {

void paged_attention(const void* q, int64_t q_stride, const Cache& cache, const Rows& rows, int heads, float scale,
                     void* out, int64_t out_stride, int window) {
  const int group = heads / cache.kv_heads;
  Pieces pieces;
  for (int64_t i = 0; i < rows.count; ++i)
    pieces.add(ceil_div(int64_t(rows.rows[4 * i + 1]) * group, kRows) * cache.kv_heads);
  const int64_t head_size = cache.num_blocks * cache.block_size * cache.head_dim;
  pieces.run([&](int64_t row, int64_t piece) {
    const int32_t* numbers = rows.rows + 4 * row;
    const int64_t start = numbers[0], length = numbers[1], context = numbers[2];
    const int64_t parts = ceil_div(length * group, kRows), head = piece / parts;
    const int64_t lane = head * group * cache.head_dim;
    Queries queries{move_by(q, start * q_stride + lane, cache.dtype),
                    move_by(out, start * out_stride + lane, cache.dtype),
                    q_stride, out_stride, context + 1, 1, group, cache.head_dim, 0, 0, scale,
                    rows.reach ? rows.reach + start : nullptr, window};
    choose_part(length * group, parts, parts - 1 - piece % parts, queries);  // those with the most keys first
    const Keys keys{move_by(cache.data, head * head_size, cache.dtype),
                    move_by(cache.data, (cache.kv_heads + head) * head_size, cache.dtype),
                    rows.blocks + numbers[3], cache.block_size, cache.head_dim, cache.is_packed()};
    attend(cache.dtype, queries, keys);
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
