// Between float32 and bfloat16, to nearest.
#include "convert.h"

#include "vec.h"

namespace tapetum {
namespace TPT_ISA {

void narrow_all(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = narrow(from[i]);
}

}  // namespace TPT_ISA
}  // namespace tapetum
