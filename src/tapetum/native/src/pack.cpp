#include "pack.h"

#include <algorithm>
#include <cstring>

#include "api.h"
#include "pool.h"

namespace tapetum {
namespace {

constexpr int64_t kBlockSteps = 16;  // a cache line of each row

// The row of the weight that a column of a group comes from, or -1 for padding.
int64_t row_of(int64_t group, int64_t column, int64_t outputs, Activation activation) {
  const int64_t width = outputs_per_group(activation);
  const int64_t output = group * width + column % width;
  if (output >= outputs) return -1;
  return column < width ? output : outputs + output;
}

template <class Element>
void pack_group(const Element* const* rows, int64_t inputs, Element* to) {
  constexpr int64_t kPerWord = 4 / sizeof(Element);
  const int64_t steps = (inputs + kPerWord - 1) / kPerWord;
  for (int64_t start = 0; start < steps; start += kBlockSteps) {
    const int64_t end = std::min(steps, start + kBlockSteps);
    for (int64_t column = 0; column < kGroupColumns; ++column) {
      for (int64_t step = start; step < end; ++step) {
        Element* word = to + (step * kGroupColumns + column) * kPerWord;
        for (int64_t i = 0; i < kPerWord; ++i) {
          const int64_t input = step * kPerWord + i;
          word[i] = rows[column] && input < inputs ? rows[column][input] : Element(0);
        }
      }
    }
  }
}

template <class Element>
void pack(const Element* weight, int64_t ldw, int64_t outputs, int64_t inputs, Activation activation, Element* to) {
  const int64_t size = packed_bytes(outputs, inputs, sizeof(Element) == 4 ? 0 : 1, activation) / sizeof(Element);
  const int64_t groups = num_groups(outputs, activation);
  parallel_for(groups, [&](int64_t group) {
    const Element* rows[kGroupColumns];
    for (int64_t column = 0; column < kGroupColumns; ++column) {
      const int64_t row = row_of(group, column, outputs, activation);
      rows[column] = row < 0 ? nullptr : weight + row * ldw;
    }
    pack_group(rows, inputs, to + group * (size / groups));
  });
}

}  // namespace
}  // namespace tapetum

TPT_API int64_t tpt_packed_bytes(int64_t outputs, int64_t inputs, int dtype, int activation) {
  return tapetum::packed_bytes(outputs, inputs, dtype, static_cast<tapetum::Activation>(activation));
}

// weight [outputs, inputs], with a gate [2 outputs, inputs], gate first; the stride of its rows in elements.
TPT_API void tpt_pack(const void* weight, int64_t ldw, int64_t outputs, int64_t inputs, int dtype, int activation,
                      void* to) {
  const auto kind = static_cast<tapetum::Activation>(activation);
  if (dtype == 0) {
    tapetum::pack(static_cast<const float*>(weight), ldw, outputs, inputs, kind, static_cast<float*>(to));
  } else {
    tapetum::pack(static_cast<const uint16_t*>(weight), ldw, outputs, inputs, kind, static_cast<uint16_t*>(to));
  }
}
