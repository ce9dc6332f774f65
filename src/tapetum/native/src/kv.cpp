#include "kv.h"

#include <algorithm>

#include "api.h"
#include "pool.h"

namespace tapetum {
namespace {

constexpr int64_t kTokens = 32;  // of a piece of work

template <class T>
void write(const Cache& cache, const T* k, int64_t k_stride, const T* v, int64_t v_stride, const int64_t* slots,
           int64_t tokens) {
  for (int head = 0; head < cache.kv_heads; ++head)
    for (int64_t i = 0; i < tokens; ++i) {
      const int token = int(slots[i] % cache.block_size);
      const int64_t from = int64_t(head) * cache.head_dim;
      store_key(cache, block_of<T>(cache, head, slots[i]), token, k + i * k_stride + from);
      store_value(cache, block_of<T>(cache, cache.kv_heads + head, slots[i]), token, v + i * v_stride + from);
    }
}

template <class T>
void write_all(const Cache& cache, const T* k, int64_t k_stride, const T* v, int64_t v_stride, const int64_t* slots,
               int64_t tokens) {
  parallel_for((tokens + kTokens - 1) / kTokens, [&](int64_t piece) {
    const int64_t first = piece * kTokens, count = std::min(kTokens, tokens - first);
    write(cache, k + first * k_stride, k_stride, v + first * v_stride, v_stride, slots + first, count);
  });
}

}  // namespace

void write_kv(const Cache& cache, const void* k, int64_t k_stride, const void* v, int64_t v_stride,
              const int64_t* slots, int64_t tokens) {
  if (cache.dtype) {
    write_all(cache, static_cast<const uint16_t*>(k), k_stride, static_cast<const uint16_t*>(v), v_stride, slots,
              tokens);
  } else {
    write_all(cache, static_cast<const float*>(k), k_stride, static_cast<const float*>(v), v_stride, slots, tokens);
  }
}

}  // namespace tapetum

TPT_API void tpt_write_kv(int dtype, void* data, int64_t num_blocks, int block_size, int kv_heads, int head_dim,
                          const void* k, int64_t k_stride, const void* v, int64_t v_stride, const int64_t* slots,
                          int64_t tokens) {
  const tapetum::Cache cache{data, num_blocks, block_size, kv_heads, head_dim, dtype};
  tapetum::write_kv(cache, k, k_stride, v, v_stride, slots, tokens);
}
