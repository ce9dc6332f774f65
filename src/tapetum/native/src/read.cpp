// How fast memory can be read: what a product with one row is measured by.
#include <atomic>
#include <cstdint>

#include "api.h"
#include "pool.h"

namespace {

constexpr int64_t kPart = 1 << 20, kAhead = 4096;

typedef uint64_t Pair __attribute__((vector_size(16)));

uint64_t sum_of(const Pair* data) {
  Pair a = {}, b = {}, c = {}, d = {};
  for (const Pair *at = data, *end = data + kPart / sizeof(Pair); at < end; at += 4) {  // a cache line
    __builtin_prefetch(at + kAhead / sizeof(Pair));
    a += at[0];
    b += at[1];
    c += at[2];
    d += at[3];
  }
  const Pair total = (a + b) + (c + d);
  return total[0] + total[1];
}

}  // namespace

// The sum of all whole numbers of 8 bytes in the whole mebibytes of `data`, aligned to 16, by all threads.
TPT_API uint64_t tpt_read(const void* data, int64_t bytes) {
  std::atomic<uint64_t> total{0};
  tapetum::parallel_for(bytes / kPart, [&](int64_t part) {
    total.fetch_add(sum_of(static_cast<const Pair*>(data) + part * kPart / sizeof(Pair)), std::memory_order_relaxed);
  });
  return total.load();
}
