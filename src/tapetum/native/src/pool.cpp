// Threads that spin for a short time after a piece of work, since the next one follows soon within a step, and sleep
// after that, so that an idle engine costs nothing.
#include "pool.h"

#include <atomic>
#include <climits>
#include <linux/futex.h>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tapetum {
namespace {

constexpr int kSpins = 20000;  // pauses before a thread sleeps, some 100 to 200 microseconds

void relax() {
#ifdef TAPETUM_X86
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

struct Job {
  std::atomic<void (*)(void*, int64_t)> call{nullptr};
  std::atomic<void*> data{nullptr};
  std::atomic<uint32_t> count{0};
};

// A round is one call of `run`. Its pieces are claimed from one word, the number of the round above the next piece, so a
// thread that was away claims nothing of a round that has ended, and nobody waits for a thread that holds no piece.
class Pool {
 public:
  explicit Pool(int count) {
    for (int i = 1; i < count; ++i) workers_.emplace_back([this] { work(); });
  }

  ~Pool() {
    is_closing_.store(true);
    round_.fetch_add(1);
    wake_all(round_);
    for (auto& worker : workers_) worker.join();
  }

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void run(uint32_t count, void (*call)(void*, int64_t), void* data) {
    std::lock_guard<std::mutex> turn(turn_);
    const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
    Job& job = jobs_[round % 2];
    job.call.store(call, std::memory_order_relaxed);
    job.data.store(data, std::memory_order_relaxed);
    job.count.store(count, std::memory_order_release);
    num_done_.store(0, std::memory_order_relaxed);
    next_.store(uint64_t(round) << 32, std::memory_order_release);
    round_.store(round);
    if (num_asleep_.load() > 0) wake_all(round_);
    take();
    for (int spin = 0; num_done_.load(std::memory_order_acquire) < count;) {
      if (spin < kSpins) {
        ++spin;
        relax();
      } else {
        std::this_thread::yield();  // who holds the last piece may wait for this core
      }
    }
  }

 private:
  void take() {
    uint64_t word = next_.load(std::memory_order_acquire);
    while (true) {
      const Job& job = jobs_[(word >> 32) % 2];
      const auto call = job.call.load(std::memory_order_relaxed);
      const auto data = job.data.load(std::memory_order_relaxed);
      const uint32_t piece = uint32_t(word);
      // A count of a later round than the word's must not be seen without that round's word, else the exchange below
      // could take a piece that its own round does not have: hence acquire.
      if (piece >= job.count.load(std::memory_order_acquire)) return;
      // Where this succeeds the word has not changed meanwhile, so what was read of the job belongs to the piece.
      if (!next_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      call(data, piece);
      num_done_.fetch_add(1, std::memory_order_release);
      word = next_.load(std::memory_order_acquire);
    }
  }

  void work() {
    uint32_t seen = 0;
    while (!is_closing_.load()) {
      for (int spin = 0; round_.load(std::memory_order_acquire) == seen && spin < kSpins; ++spin) relax();
      while (round_.load() == seen) {
        num_asleep_.fetch_add(1);
        sleep_while(round_, seen);
        num_asleep_.fetch_sub(1);
      }
      seen = round_.load(std::memory_order_acquire);
      take();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex turn_;
  Job jobs_[2];
  alignas(64) std::atomic<uint64_t> next_{0};
  alignas(64) std::atomic<uint32_t> num_done_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<int> num_asleep_{0};
  std::atomic<bool> is_closing_{false};
};

int allowed_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

std::mutex choosing;
std::shared_ptr<Pool> pool;  // replaced as a whole; a call in progress keeps its own

std::shared_ptr<Pool> current() {
  std::lock_guard<std::mutex> lock(choosing);
  if (!pool) pool = std::make_shared<Pool>(allowed_cores());
  return pool;
}

}  // namespace

void parallel_for(int64_t count, void (*run)(void*, int64_t), void* data) {
  const auto chosen = current();
  if (count <= 1 || chosen->size() == 1) {
    for (int64_t piece = 0; piece < count; ++piece) run(data, piece);
    return;
  }
  chosen->run(static_cast<uint32_t>(count), run, data);
}

int num_threads() { return current()->size(); }

void set_num_threads(int count) {
  auto made = std::make_shared<Pool>(count < 1 ? 1 : count);
  std::lock_guard<std::mutex> lock(choosing);
  pool.swap(made);
}

}  // namespace tapetum
