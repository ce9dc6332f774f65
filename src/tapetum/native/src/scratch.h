// Memory that a kernel needs while it runs.
#pragma once
#include <cstdint>

namespace tapetum {

// At least this many bytes, aligned to 64, until the calling thread asks again. It is kept, so that a step allocates
// nothing once the largest kernel has run.
void* scratch(int64_t bytes);

}  // namespace tapetum
