// The resize over edge shapes, for the sanitizers: source and patches on the heap and not one byte more.
// Compared with the plain sum over both axes, which it may miss by what its two passes round. Bits are pytest's.
#include "filter.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "resize.h"

extern "C" void* tpt_resizer_new(int64_t width, int64_t height, int64_t used_width, int64_t used_height,
                                 int is_down_first, int64_t patch, int64_t merge, int64_t fold);
extern "C" int64_t tpt_resizer_feed(void* resizer, const uint8_t* rows, int64_t stride, int pixel_bytes, int64_t count,
                                    uint8_t* patches);
extern "C" void tpt_resizer_free(void* resizer);

namespace {

using namespace tapetum;

struct Shape {
  int64_t width, height, used_width, used_height;
};

void check(const Shape& shape, int pixel_bytes, bool is_down_first) {
  static std::mt19937 numbers(2);
  const int64_t stride = shape.width * pixel_bytes;
  std::vector<uint8_t> source(stride * shape.height), out(3 * shape.used_width * shape.used_height);
  for (auto& level : source) level = uint8_t(96 + numbers() % 64);  // far from the ends, where each pass would cut
  void* resizer = tpt_resizer_new(shape.width, shape.height, shape.used_width, shape.used_height, is_down_first, 1, 1, 1);
  for (int64_t row = 0; row < shape.height; row += 8) {
    const int64_t count = std::min<int64_t>(8, shape.height - row);
    const std::vector<uint8_t> band(source.begin() + row * stride, source.begin() + (row + count) * stride);
    tpt_resizer_feed(resizer, band.data(), stride, pixel_bytes, count, out.data());
  }
  tpt_resizer_free(resizer);
  const auto across = bicubic_taps(int32_t(shape.width), int32_t(shape.used_width));
  const auto down = bicubic_taps(int32_t(shape.height), int32_t(shape.used_height));
  const double unit = std::ldexp(1.0, -2 * kPrecisionBits);
  for (int64_t i = 0; i < int64_t(out.size()); ++i) {
    const Taps &rows = down[i / 3 / shape.used_width], &columns = across[i / 3 % shape.used_width];
    double sum = 0;
    for (size_t y = 0; y < rows.weights.size(); ++y)
      for (size_t x = 0; x < columns.weights.size(); ++x)
        sum += unit * rows.weights[y] * columns.weights[x] *
               source[(rows.start + y) * stride + (columns.start + x) * pixel_bytes + i % 3];
    if (std::fabs(sum - out[i]) <= 1.25) continue;
    std::fprintf(stderr, "wrong: resize of %ldx%ld\n", long(shape.width), long(shape.height));
    std::exit(1);
  }
}

}  // namespace

void check_resize() {
  const Shape shapes[] = {{1, 1, 1, 1}, {1, 1, 9, 5}, {7, 3, 2, 4}, {64, 64, 64, 64}, {90, 61, 28, 7}, {13, 130, 30, 6}};
  for (const auto& shape : shapes)
    for (const int pixel_bytes : {3, 4})
      for (const bool is_down_first : {false, true}) check(shape, pixel_bytes, is_down_first);
}
