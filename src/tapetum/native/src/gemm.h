// Products of activations with weights that were packed once.
//
// Layout of a packed weight: groups of 32 columns (outputs) one after the other; a group is [steps][32] words of four
// bytes. A word holds the inputs of one step: one float32, or two neighbouring bfloat16. Missing inputs and outputs are
// zeros. With a gate a group is 16 columns of the gate, then the 16 columns of the values they are multiplied with.
// The layout does not depend on the instruction set, so a packed weight may be kept.
//
// Every output is one chain of sums over the inputs, from the first to the last, whatever the number of rows, of threads,
// or the place of the row among them: the same row gives the same bits.
#pragma once
#include <cstdint>

#include "isa.h"

namespace tapetum {

enum class Activation : int { none, quick_gelu, gelu, silu_mul, gelu_tanh, gelu_tanh_mul };

// Whether the weight has two rows for each output: of the gate, and of the value that it is multiplied with.
inline bool has_gate(Activation activation) {
  return activation == Activation::silu_mul || activation == Activation::gelu_tanh_mul;
}

struct Weight {
  const void* data;   // as above, aligned to 64 bytes
  const float* bias;  // [outputs] or null; with a gate [2 outputs], gate first
  int64_t outputs, inputs;
  int dtype;  // of the weight, of the rows and of the outputs
  Activation activation;
};

// out = activation(x W^T + bias) + residual in float32, rounded once. x [rows, inputs], out and residual [rows, outputs];
// strides in elements. residual may be null, and may be out itself.
void linear(const Weight& weight, const void* x, int64_t ldx, int64_t rows, const void* residual, int64_t ldr, void* out,
            int64_t ldo);

// What `linear` reads and writes besides the weight.
struct LinearRows {
  const void* x;
  int64_t ldx, rows;
  const void* residual;
  int64_t ldr;
  void* out;
  int64_t ldo;
};

TPT_FOR_ALL_SETS(void linear_rows(const Weight& weight, const LinearRows& rows);)

}  // namespace tapetum
