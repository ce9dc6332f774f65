// Single values of either dtype, for what fills no vector.
#pragma once
#include "vec.h"

namespace tapetum {
namespace TPT_ISA {

inline float wide(float x) { return x; }
inline float wide(bf16 x) { return widen(x); }
inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) { *p = narrow(x); }

}  // namespace TPT_ISA
}  // namespace tapetum
