// Which of the compiled instruction sets runs.
#pragma once

namespace tapetum {

enum class Isa { portable, avx2, avx512 };

Isa isa();  // the best this processor has, or what `use_isa` said

}  // namespace tapetum

// `TPT_CHOOSE(f)(...)` calls f of the namespace of the chosen instruction set.
#ifdef TAPETUM_X86
#define TPT_CHOOSE(f)                                             \
  (::tapetum::isa() == ::tapetum::Isa::avx512 ? ::tapetum::avx512::f \
   : ::tapetum::isa() == ::tapetum::Isa::avx2 ? ::tapetum::avx2::f   \
                                              : ::tapetum::portable::f)
#else
#define TPT_CHOOSE(f) (::tapetum::portable::f)
#endif

// `TPT_FOR_ALL_SETS(declaration)` declares a kernel in the namespace of every instruction set.
#ifdef TAPETUM_X86
#define TPT_FOR_ALL_SETS(...)         \
  namespace portable { __VA_ARGS__ } \
  namespace avx2 { __VA_ARGS__ }     \
  namespace avx512 { __VA_ARGS__ }
#else
#define TPT_FOR_ALL_SETS(...) namespace portable { __VA_ARGS__ }
#endif
