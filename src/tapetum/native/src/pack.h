// Brings a weight into the layout that gemm.h describes.
#pragma once
#include <cstdint>

#include "gemm.h"

namespace tapetum {

constexpr int64_t kGroupColumns = 32;  // of a packed weight

// Inputs that a word of four bytes holds.
inline int64_t inputs_per_word(int dtype) { return dtype == 0 ? 1 : 2; }

// Outputs that come from one group.
inline int64_t outputs_per_group(Activation activation) {
  return has_gate(activation) ? kGroupColumns / 2 : kGroupColumns;
}

inline int64_t num_steps(int64_t inputs, int dtype) {
  return (inputs + inputs_per_word(dtype) - 1) / inputs_per_word(dtype);
}

inline int64_t num_groups(int64_t outputs, Activation activation) {
  return (outputs + outputs_per_group(activation) - 1) / outputs_per_group(activation);
}

inline int64_t packed_bytes(int64_t outputs, int64_t inputs, int dtype, Activation activation) {
  return num_groups(outputs, activation) * num_steps(inputs, dtype) * kGroupColumns * 4;
}

}  // namespace tapetum
