#include "add.h"

#include "rows.h"

namespace tapetum {

void add_rows(int dtype, void* to, const void* from, int64_t stride, int64_t rows, int64_t width) {
  const int64_t size = size_of(dtype);
  for_rows(rows, width, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row)
      TPT_CHOOSE(add_values)
      (dtype, static_cast<char*>(to) + row * width * size, static_cast<const char*>(from) + row * stride * size, width);
  });
}

}  // namespace tapetum
