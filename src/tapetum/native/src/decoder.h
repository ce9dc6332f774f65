// All layers of a decoder over the packed tokens of one step: norm, attention with rotary positions over paged keys,
// gated MLP. One call instead of some ten for each layer; the same kernels in the same order, so the same bits.
#pragma once
#include <cstdint>

#include "attention.h"
#include "gemm.h"

namespace tapetum {

struct DecoderLayer {
  const void* norm1;   // [hidden]
  const Weight* qkv;   // hidden -> (H + 2 K) D
  const void* q_norm;  // [D], of each head, or null; so k_norm
  const void* k_norm;
  const Weight* out;
  const void* post1;  // [hidden], of what attention adds, or null
  const void* norm2;
  const Weight* gate_up;  // with a gate
  const Weight* down;
  const void* post2;  // of what the MLP adds, or null
  int turns;          // which table turns queries and keys
  int window;         // as attention.h says
};

// How positions turn pairs of values, as rotary.h says.
struct TurnTable {
  const int64_t* axis;     // [D / 2]
  const float* frequency;  // [D / 2]
  float scale;
};

struct Decoder {
  const DecoderLayer* layers;
  int64_t num_layers;
  const TurnTable* turns;
  int64_t num_turns;
  const void* norm;  // the last one, [hidden]
  int64_t hidden;
  int heads, kv_heads, head_dim, dtype;  // H, K, D
  int has_wide_norms;  // as norm.h says, of all of them
  float eps;
  float scale;  // of the scores
};

// Values [end - start, levels of the step x hidden] for the packed tokens [start, end): a level is added behind each of
// the first layers.
struct DeepFeatures {
  int64_t start, end;
  const void* values;
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
  const int32_t* reach;
  const int64_t* sampled;  // tokens whose hidden states are wanted, ascending
  int64_t num_sampled;
  const DeepFeatures* deep;
  int64_t num_deep, levels;
  void* workspace;
  void* out;  // [num_sampled, hidden], normalised
  int block_size;
};

// Bytes of the workspace of a step.
int64_t decoder_workspace(const Decoder& decoder, int64_t tokens);

void run_decoder(const Decoder& decoder, const DecoderStep& step);

}  // namespace tapetum
