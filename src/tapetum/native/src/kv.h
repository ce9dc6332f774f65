// The paged keys and values of one layer, and how tokens get into them.
#pragma once
#include <cstdint>

#include "isa.h"

namespace tapetum {

constexpr int kGroup = 16;  // tokens whose keys or values lie together, packed
constexpr int kMaxWidth = 256;  // head width D

// [2 K, N, S, D], key heads before value heads. What lies inside a block of one head, S x D elements, belongs to these
// kernels, but a block may be moved as a whole. Where S and D are multiples of 16, a block holds S / 16 groups:
//   keys   [D / E, 16, E]  E elements of one token side by side: 2 bfloat16 or 1 float32, the operand of a dot product
//   values [16 / E, D, E]  E tokens side by side
// so that 16 scores, or 16 elements of an output, come out of one vector. Other shapes lie plainly, [S, D].
struct Cache {
  void* data;
  int64_t num_blocks;
  int block_size, kv_heads, head_dim, dtype;

  bool is_packed() const { return block_size % kGroup == 0 && head_dim % kGroup == 0; }
};

// One token into a group; `width` is D, `stride` that of the group.
template <class T>
inline void put_key(T* group, int token, const T* key, int width) {
  constexpr int E = 4 / sizeof(T);
  T* to = group + token * E;
  for (int d = 0; d < width; d += E)
    for (int e = 0; e < E; ++e) to[d * kGroup + e] = key[d + e];
}

template <class T>
inline void put_value(T* group, int stride, int token, const T* value, int width) {
  constexpr int E = 4 / sizeof(T);
  T* to = group + token / E * E * stride + token % E;
  for (int d = 0; d < width; ++d) to[d * E] = value[d];
}

// One token of one head into its block, for loops over tokens that belong to other kernels.
template <class T>
inline void store_key(const Cache& cache, T* block, int token, const T* key) {
  const int width = cache.head_dim;
  if (cache.is_packed()) {
    put_key(block + token / kGroup * kGroup * width, token % kGroup, key, width);
  } else {
    for (int d = 0; d < width; ++d) block[token * width + d] = key[d];
  }
}

template <class T>
inline void store_value(const Cache& cache, T* block, int token, const T* value) {
  const int width = cache.head_dim;
  if (cache.is_packed()) {
    put_value(block + token / kGroup * kGroup * width, width, token % kGroup, value, width);
  } else {
    for (int d = 0; d < width; ++d) block[token * width + d] = value[d];
  }
}

// The block of `head` (0 to 2 K) that holds `slot` = block id x S + token.
template <class T>
inline T* block_of(const Cache& cache, int head, int64_t slot) {
  const int64_t block = head * cache.num_blocks + slot / cache.block_size;
  return static_cast<T*>(cache.data) + block * cache.block_size * cache.head_dim;
}

// Keys and values [tokens, K, D] go to their slots; strides are elements from one token to the next.
void write_kv(const Cache& cache, const void* k, int64_t k_stride, const void* v, int64_t v_stride,
              const int64_t* slots, int64_t tokens);

inline void write_kv(const Cache& cache, const void* k, const void* v, int64_t stride, const int64_t* slots,
                     int64_t tokens) {
  write_kv(cache, k, stride, v, stride, slots, tokens);
}

}  // namespace tapetum
