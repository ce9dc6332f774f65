#include "patchify.h"

#include <cstring>
#include <type_traits>

namespace tapetum {
namespace {

// `size` is a constant for the usual patches: then a copy is two moves and no call.
template <class Size>
void put(const PatchGrid& grid, int64_t y, const uint8_t* const (&colours)[3], uint8_t* patches, Size size) {
  const int64_t m = grid.merge, area = grid.patch * grid.patch;
  const int64_t plane = grid.fold * area, bytes = 3 * plane;
  const int64_t columns = grid.width / grid.patch, row = y / grid.patch;
  uint8_t* first = patches + (row / m * m * columns + row % m * m) * bytes + y % grid.patch * grid.patch;
  for (int64_t column = 0; column < columns; ++column) {
    uint8_t* to = first + (column / m * m * m + column % m) * bytes;
    for (int colour = 0; colour < 3; ++colour) memcpy(to + colour * plane, colours[colour] + column * grid.patch, size);
  }
}

}  // namespace

void PatchGrid::put_row(int64_t y, const uint8_t* const (&colours)[3], uint8_t* patches) const {
  if (patch == 14) return put(*this, y, colours, patches, std::integral_constant<size_t, 14>());
  if (patch == 16) return put(*this, y, colours, patches, std::integral_constant<size_t, 16>());
  put(*this, y, colours, patches, size_t(patch));
}

}  // namespace tapetum
