#include "isa.h"

#include <atomic>
#include <cstring>

#include "api.h"
#include "pool.h"

namespace tapetum {
namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512"};

Isa best() {
#ifdef TAPETUM_X86
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  if (has_avx2 && has_avx512) return Isa::avx512;
  if (has_avx2) return Isa::avx2;
#endif
  return Isa::portable;
}

std::atomic<Isa> chosen{best()};

}  // namespace

Isa isa() { return chosen.load(std::memory_order_relaxed); }

}  // namespace tapetum

TPT_API const char* tpt_isa() { return tapetum::kNames[static_cast<int>(tapetum::isa())]; }

// Run another set than the best, for tests and comparisons: 0, or -1 if this processor does not have it.
TPT_API int tpt_use_isa(const char* name) {
  for (int i = 0; i <= static_cast<int>(tapetum::best()); ++i) {
    if (std::strcmp(name, tapetum::kNames[i]) == 0) {
      tapetum::chosen.store(static_cast<tapetum::Isa>(i));
      return 0;
    }
  }
  return -1;
}

TPT_API int tpt_num_threads() { return tapetum::num_threads(); }

TPT_API void tpt_set_num_threads(int count) { tapetum::set_num_threads(count); }
