#include "scratch.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace tapetum {
namespace {

constexpr int64_t kUnit = 1 << 16;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Memory {
  std::unique_ptr<void, Free> data;
  int64_t bytes = 0;
};

}  // namespace

void* scratch(int64_t bytes) {
  static thread_local Memory kept;
  if (bytes > kept.bytes) {
    const int64_t rounded = (bytes + kUnit - 1) / kUnit * kUnit;
    kept.bytes = 0;
    kept.data.reset(std::aligned_alloc(64, rounded));
    if (!kept.data) throw std::bad_alloc();
    kept.bytes = rounded;
  }
  return kept.data.get();
}

}  // namespace tapetum
