#include "rotary.h"

#include <cmath>

#include "api.h"
#include "convert.h"
#include "rows.h"

namespace tapetum {
namespace {

// One angle at a time: a vector routine would give the last few of a row other bits than the rest.
void turn_token(const Turns& turns, int64_t token, float* cos, float* sin) {
  for (int64_t i = 0; i < turns.half; ++i) {
    const float angle = float(turns.positions[turns.axis[i] * turns.tokens + token]) * turns.frequency[i];
    cos[i] = cos[turns.half + i] = std::cos(angle) * turns.scale;
    sin[turns.half + i] = std::sin(angle) * turns.scale;
    sin[i] = -sin[turns.half + i];
  }
}

}  // namespace

void rotate(const HeadShape& shape, const void* from, const void* cos, const void* sin, void* to) {
  const int64_t size = size_of(shape.dtype);
  const auto at = [size](const void* start, int64_t values) { return static_cast<const char*>(start) + values * size; };
  for_rows(shape.tokens, shape.heads * shape.width, [&](int64_t first, int64_t count) {
    HeadShape part = shape;
    part.tokens = count;
    TPT_CHOOSE(rotate_tokens)
    (part, at(from, first * shape.from_stride), at(cos, first * shape.width), at(sin, first * shape.width),
     const_cast<char*>(at(to, first * shape.to_stride)));
  });
}

void make_turns(const Turns& turns) {
  const int64_t width = 2 * turns.half;
  // an angle costs some thirty times as much as a value of other rows
  for_rows(turns.tokens, 32 * width, [&](int64_t first, int64_t count) {
    constexpr int64_t kWidest = 1024;
    float cos[kWidest], sin[kWidest];
    for (int64_t token = first; token < first + count; ++token) {
      if (turns.dtype == 0) {
        turn_token(turns, token, static_cast<float*>(turns.cos) + token * width,
                   static_cast<float*>(turns.sin) + token * width);
        continue;
      }
      turn_token(turns, token, cos, sin);
      TPT_CHOOSE(narrow_all)(cos, static_cast<uint16_t*>(turns.cos) + token * width, width);
      TPT_CHOOSE(narrow_all)(sin, static_cast<uint16_t*>(turns.sin) + token * width, width);
    }
  });
}

}  // namespace tapetum

TPT_API void tpt_rotate(int dtype, int64_t tokens, int64_t heads, int64_t width, int64_t from_stride, const void* from,
                        const void* cos, const void* sin, void* to) {
  tapetum::rotate({dtype, tokens, heads, width, from_stride, heads * width}, from, cos, sin, to);
}

// A head wider than 1024 has no place; -1 then.
TPT_API int tpt_turns(int dtype, int64_t tokens, int64_t half, const int64_t* positions, const int64_t* axis,
                      const float* frequency, void* cos, void* sin) {
  if (half > 512) return -1;
  tapetum::make_turns({dtype, tokens, half, positions, axis, frequency, cos, sin});
  return 0;
}
