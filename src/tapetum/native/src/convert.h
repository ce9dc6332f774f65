// Between float32 and bfloat16, to nearest.
#pragma once
#include <cstdint>

#include "isa.h"

namespace tapetum {

TPT_FOR_ALL_SETS(void narrow_all(const float* from, uint16_t* to, int64_t count);)

}  // namespace tapetum
