// All layers of a decoder over the packed tokens of one step: norm, attention with rotary positions over paged keys,
// gated MLP. One call instead of some ten for each layer; the same kernels in the same order, so the same bits.
#pragma once
#include <cstdint>

#include "attention.h"
#include "gemm.h"

namespace tapetum {

struct DecoderLayer {
  const void* norm1;  // [hidden]
  const Weight* qkv;  // hidden -> (H + 2 K) D
  const Weight* out;
  const void* norm2;
  const Weight* gate_up;  // with a gate
  const Weight* down;
};

struct Decoder {
  const DecoderLayer* layers;
  int64_t num_layers;
  const void* norm;  // the last one, [hidden]
  int64_t hidden;
  const int64_t* axis;     // [D / 2], of each pair of values, as rotary.h says
  const float* frequency;  // [D / 2]
  int heads, kv_heads, head_dim, dtype;  // H, K, D
  float eps;
  float scale;  // of the scores
};

struct DecoderStep {
  void* x;  // [tokens, hidden]; overwritten
  const int64_t* positions;  // [axes, tokens]
  const int64_t* slots;  // [tokens]
  int64_t tokens;
  void* const* caches;  // of each layer, as kv.h says
  int64_t num_blocks;
  const int32_t* rows;  // as attention.h says
  int64_t num_rows;
  const int32_t* blocks;
  const int64_t* sampled;  // tokens whose hidden states are wanted, ascending
  int64_t num_sampled;
  void* workspace;
  void* out;  // [num_sampled, hidden], normalised
  int block_size;
};

// Bytes of the workspace of a step.
int64_t decoder_workspace(const Decoder& decoder, int64_t tokens);

void run_decoder(const Decoder& decoder, const DecoderStep& step);

}  // namespace tapetum
