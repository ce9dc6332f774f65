// Softmax attention: of rows over their paged keys (causal), and of packed patches inside their segments.
//
// One chain of operations for each query, whoever computes it: keys come in tiles of kTile from the row's or segment's
// first one on, the softmax runs online from tile to tile, products add up key by key. What each kStretch keys give is
// put together in order. So a query's bits depend on its position and its keys alone, never on how queries are cut,
// batched or given to threads.
#pragma once
#include <cstdint>

#include "kv.h"

namespace tapetum {

constexpr int kTile = 256;  // keys of a tile
constexpr int kStretch = 4 * kTile;  // keys that one thread goes through, if others are to go through the rest

// Each row is four numbers: first packed token, tokens, tokens before them, where its blocks begin in `blocks`. `reach`
// has for each packed token how many keys of its row it sees, which must not be more than there are; without it a token
// sees those up to its own.
struct Rows {
  const int32_t* rows;
  int64_t count;
  const int32_t* blocks;
  const int32_t* reach = nullptr;
};

// Attention of packed q [T, H, D] over each row's blocks; a row of length 1 is a decode. With a window a token sees its
// own key and the window - 1 before it, beside what its reach gives it behind; 0 = no window. Strides in elements.
void paged_attention(const void* q, int64_t q_stride, const Cache& cache, const Rows& rows, int heads, float scale,
                     void* out, int64_t out_stride, int window = 0);

// Packed patches of `count` segments, [bounds[i], bounds[i + 1]) each.
struct Patches {
  const int32_t* bounds;
  int64_t count;
  int heads, head_dim, dtype;
};

// Elements of the buffer that `segment_keys` fills.
int64_t segment_keys_size(const Patches& patches);

// Packs k and v [P, H, D] for `segment_attention`; strides are elements from one patch to the next.
void segment_keys(const Patches& patches, const void* k, int64_t k_stride, const void* v, int64_t v_stride, void* keys);

// Attention of the packed queries [first, first + length) inside their segments; q and out begin at query `first`.
void segment_attention(const Patches& patches, const void* keys, const void* q, int64_t q_stride, int64_t first,
                       int64_t length, float scale, void* out, int64_t out_stride);

}  // namespace tapetum
