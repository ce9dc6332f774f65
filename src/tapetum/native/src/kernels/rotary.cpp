#include "rotary.h"

#include "element.h"

namespace tapetum {
namespace TPT_ISA {
namespace {

template <class Element>
void rotate_head(const Element* from, const Element* cos, const Element* sin, int64_t half, Element* to) {
  int64_t i = 0;
  for (; i + W <= half; i += W) {  // both halves are read before one is written
    const Vec first = load(from + i), second = load(from + half + i);
    store(to + i, fma(second, load(sin + i), first * load(cos + i)));
    store(to + half + i, fma(first, load(sin + half + i), second * load(cos + half + i)));
  }
  for (; i < half; ++i) {
    const float first = wide(from[i]), second = wide(from[half + i]);
    put(to + i, first * wide(cos[i]) + second * wide(sin[i]));
    put(to + half + i, second * wide(cos[half + i]) + first * wide(sin[half + i]));
  }
}

template <class Element>
void rotate_all(const HeadShape& shape, const Element* from, const Element* cos, const Element* sin, Element* to) {
  for (int64_t token = 0; token < shape.tokens; ++token)
    for (int64_t head = 0; head < shape.heads; ++head)
      rotate_head(from + token * shape.from_stride + head * shape.width, cos + token * shape.width,
                  sin + token * shape.width, shape.width / 2, to + token * shape.to_stride + head * shape.width);
}

}  // namespace

void rotate_tokens(const HeadShape& shape, const void* from, const void* cos, const void* sin, void* to) {
  if (shape.dtype)
    rotate_all(shape, static_cast<const bf16*>(from), static_cast<const bf16*>(cos), static_cast<const bf16*>(sin),
               static_cast<bf16*>(to));
  else
    rotate_all(shape, static_cast<const float*>(from), static_cast<const float*>(cos), static_cast<const float*>(sin),
               static_cast<float*>(to));
}

}  // namespace TPT_ISA
}  // namespace tapetum
