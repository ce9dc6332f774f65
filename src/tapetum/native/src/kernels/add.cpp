#include "add.h"

#include "element.h"

namespace tapetum {
namespace TPT_ISA {
namespace {

template <class Element>
void add(Element* to, const Element* from, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, load(to + i) + load(from + i));
  for (; i < count; ++i) put(to + i, wide(to[i]) + wide(from[i]));
}

}  // namespace

void add_values(int dtype, void* to, const void* from, int64_t count) {
  dtype ? add(static_cast<bf16*>(to), static_cast<const bf16*>(from), count)
        : add(static_cast<float*>(to), static_cast<const float*>(from), count);
}

}  // namespace TPT_ISA
}  // namespace tapetum
