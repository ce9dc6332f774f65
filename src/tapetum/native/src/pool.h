// The threads of the library: one pool for all kernels, of which the caller is a member.
#pragma once
#include <cstdint>

namespace tapetum {

// Work on `count` pieces. `run(data, piece)` is called once for each piece in [0, count), by any thread, in any order:
// a piece must not depend on which thread runs it. Returns when all are done. Calls from several threads take turns.
void parallel_for(int64_t count, void (*run)(void* data, int64_t piece), void* data);

template <class Work>
void parallel_for(int64_t count, const Work& work) {
  parallel_for(
      count, [](void* data, int64_t piece) { (*static_cast<const Work*>(data))(piece); },
      const_cast<Work*>(&work));
}

int num_threads();
void set_num_threads(int count);

}  // namespace tapetum
