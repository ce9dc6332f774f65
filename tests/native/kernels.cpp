// Every kernel over edge shapes, in buffers of exactly the size it may touch, for the sanitizers: `make sanitize`.
// Results are compared with plain loops in double, so that nothing passes by doing nothing.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "add.h"
#include "attention.h"
#include "head.h"
#include "norm.h"
#include "pack.h"
#include "pool.h"
#include "rotary.h"

extern "C" int tpt_use_isa(const char* name);
extern "C" void tpt_pack(const void* weight, int64_t ldw, int64_t outputs, int64_t inputs, int dtype, int activation,
                         void* to);

void check_resize();  // resize.cpp

namespace {

using namespace tapetum;

std::mt19937 numbers(1);

void require(bool is_true, const std::string& what) {
  if (is_true) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::exit(1);
}

// Values of a dtype, on the heap and not one byte more.
class Values {
 public:
  Values(int dtype, int64_t count) : dtype_(dtype), bytes_(count * (dtype ? 2 : 4)) {}

  static Values whole(int dtype, int64_t count) {  // whole numbers: sums and bfloat16 are exact
    Values made(dtype, count);
    for (int64_t i = 0; i < count; ++i) made.set(i, float(int(numbers() % 7) - 3));
    return made;
  }

  void set(int64_t i, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t high = uint16_t(bits >> 16);
    if (dtype_) std::memcpy(bytes_.data() + 2 * i, &high, 2);
    else std::memcpy(bytes_.data() + 4 * i, &value, 4);
  }

  double operator[](int64_t i) const {
    uint32_t bits = 0;
    if (dtype_) std::memcpy(reinterpret_cast<char*>(&bits) + 2, bytes_.data() + 2 * i, 2);
    else std::memcpy(&bits, bytes_.data() + 4 * i, 4);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }

  void* data() { return bytes_.data(); }

 private:
  int dtype_;
  std::vector<char> bytes_;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Packed = std::unique_ptr<void, Free>;

Packed pack(Values& weight, int64_t outputs, int64_t inputs, int dtype) {
  Packed to(std::aligned_alloc(64, packed_bytes(outputs, inputs, dtype, Activation::none)));
  tpt_pack(weight.data(), inputs, outputs, inputs, dtype, 0, to.get());
  return to;
}

bool is_near(double got, double want, int dtype) {
  return std::fabs(got - want) <= (dtype ? 0.02 : 1e-4) * std::fmax(1.0, std::fabs(want));
}

void check_linear(int dtype, int64_t rows, int64_t outputs, int64_t inputs) {
  Values weight = Values::whole(dtype, outputs * inputs), x = Values::whole(dtype, rows * inputs);
  Values out = Values::whole(dtype, rows * outputs), before = out;
  std::vector<float> bias(outputs, 2.f);
  const Packed packed = pack(weight, outputs, inputs, dtype);
  const Weight linear_weight{packed.get(), bias.data(), outputs, inputs, dtype, Activation::none};
  linear(linear_weight, x.data(), inputs, rows, out.data(), outputs, out.data(), outputs);

  Values scores(dtype, rows * outputs);
  std::vector<float> best(rows * 2);
  std::vector<int64_t> ids(rows * 2);
  head(linear_weight, {x.data(), inputs, rows, dtype, scores.data(), outputs, 2, best.data(), ids.data()});
  for (int64_t r = 0; r < rows; ++r) {
    int64_t highest = 0;
    for (int64_t n = 0; n < outputs; ++n) {
      double sum = 2;
      for (int64_t k = 0; k < inputs; ++k) sum += x[r * inputs + k] * weight[n * inputs + k];
      require(is_near(out[r * outputs + n], sum + before[r * outputs + n], dtype), "linear");
      require(is_near(scores[r * outputs + n], sum, dtype), "head");
      if (scores[r * outputs + n] > scores[r * outputs + highest]) highest = n;
    }
    require(ids[r * 2] == highest && (outputs > 1) == (ids[r * 2 + 1] >= 0), "best of a head");
  }
}

// One query over keys and values [from, count), as `key(i, d)` and `value(i, d)` give them.
using Read = std::function<double(int64_t, int)>;
void check_query(const Values& out, int64_t at, const std::function<double(int)>& query, const Read& key,
                 const Read& value, int64_t count, int width, int dtype, int64_t from = 0) {
  std::vector<double> weights(count);
  double total = 0;
  for (int64_t i = from; i < count; ++i) {
    double score = 0;
    for (int d = 0; d < width; ++d) score += query(d) * key(i, d) / 16;
    total += weights[i] = std::exp(score);
  }
  for (int d = 0; d < width; ++d) {
    double sum = 0;
    for (int64_t i = from; i < count; ++i) sum += weights[i] / total * value(i, d);
    require(std::fabs(out[at + d] - sum) < (dtype ? 0.05 : 1e-3), "attention");
  }
}

void check_segments(int dtype, int heads, int width, const std::vector<int32_t>& bounds) {
  const int64_t stride = heads * width, count = bounds.back();
  Values q = Values::whole(dtype, count * stride), k = Values::whole(dtype, count * stride);
  Values v = Values::whole(dtype, count * stride), out(dtype, count * stride);
  const Patches patches{bounds.data(), int64_t(bounds.size()) - 1, heads, width, dtype};
  Values keys(dtype, segment_keys_size(patches));
  segment_keys(patches, k.data(), stride, v.data(), stride, keys.data());
  segment_attention(patches, keys.data(), q.data(), stride, 0, count, 1.f / 16, out.data(), stride);
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    for (int64_t p = bounds[s]; p < bounds[s + 1]; ++p)
      for (int h = 0; h < heads; ++h) {
        const auto place = [&](int64_t i, int d) { return (bounds[s] + i) * stride + h * width + d; };
        check_query(out, p * stride + h * width, [&](int d) { return q[p * stride + h * width + d]; },
                    [&](int64_t i, int d) { return k[place(i, d)]; }, [&](int64_t i, int d) { return v[place(i, d)]; },
                    bounds[s + 1] - bounds[s], width, dtype);
      }
}

// A row of `length` tokens after `context` others, all of them in blocks that lie backwards. With a window each of
// them sees all behind it, too.
void check_paged(int dtype, int width, int block_size, int context, int length, int window) {
  constexpr int kHeads = 6, kKeyHeads = 2;
  const int total = context + length, num_blocks = (total + block_size - 1) / block_size;
  const int64_t stride = kKeyHeads * width;
  Values data = Values::whole(dtype, int64_t(2) * kKeyHeads * num_blocks * block_size * width);
  Values k = Values::whole(dtype, total * stride), v = Values::whole(dtype, total * stride);
  Values q = Values::whole(dtype, length * kHeads * width), out(dtype, length * kHeads * width);
  const Cache cache{data.data(), num_blocks, block_size, kKeyHeads, width, dtype};
  std::vector<int32_t> blocks(num_blocks);
  std::vector<int64_t> slots(total);
  for (int i = 0; i < num_blocks; ++i) blocks[i] = num_blocks - 1 - i;
  for (int i = 0; i < total; ++i) slots[i] = int64_t(blocks[i / block_size]) * block_size + i % block_size;
  write_kv(cache, k.data(), v.data(), stride, slots.data(), total);
  const std::vector<int32_t> row = {0, length, context, 0};
  const std::vector<int32_t> reach(length, total);
  paged_attention(q.data(), kHeads * width, cache, {row.data(), 1, blocks.data(), window ? reach.data() : nullptr},
                  kHeads, 1.f / 16, out.data(), kHeads * width, window);
  for (int t = 0; t < length; ++t)
    for (int h = 0; h < kHeads; ++h) {
      const int64_t at = (t * kHeads + h) * width, first = h / (kHeads / kKeyHeads) * width;
      check_query(out, at, [&](int d) { return q[at + d]; },
                  [&](int64_t i, int d) { return k[i * stride + first + d]; },
                  [&](int64_t i, int d) { return v[i * stride + first + d]; }, window ? total : context + t + 1, width,
                  dtype, window ? std::max(0, context + t + 1 - window) : 0);
    }
}

void check_rows(int dtype, int64_t rows, int64_t width) {
  Values x = Values::whole(dtype, rows * width), one(dtype, width), zero(dtype, width);
  for (int64_t i = 0; i < width; ++i) one.set(i, 1.f), zero.set(i, 0.f);
  Values scaled(dtype, rows * width), centred(dtype, rows * width), turned(dtype, rows * width);
  rms_norm({dtype, width, 1e-6f}, x.data(), one.data(), rows, scaled.data());
  const std::vector<float> wide(width, 1.f);
  Values unrounded(dtype, rows * width), heads = x, doubled = x;
  rms_norm({dtype, width, 1e-6f, 1}, x.data(), wide.data(), rows, unrounded.data());
  rms_norm_heads({dtype, width / 2, 1e-6f}, heads.data(), one.data(), rows, 2, width);
  add_rows(dtype, doubled.data(), x.data(), width, rows, width);
  layer_norm({dtype, width, 1e-6f}, x.data(), one.data(), zero.data(), rows, centred.data());
  Values cos(dtype, rows * width), sin(dtype, rows * width);
  for (int64_t i = 0; i < rows * width; ++i) cos.set(i, 0.f), sin.set(i, 1.f);
  rotate({dtype, rows, 1, width, width, width}, x.data(), cos.data(), sin.data(), turned.data());
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < width; ++i) mean += x[r * width + i] / width;
    for (int64_t i = 0; i < width; ++i) square += x[r * width + i] * x[r * width + i] / width;
    for (int64_t i = 0; i < width; ++i) {
      const double value = x[r * width + i];
      require(is_near(scaled[r * width + i], value / std::sqrt(square + 1e-6), dtype), "rms_norm");
      require(is_near(unrounded[r * width + i], value / std::sqrt(square + 1e-6), dtype), "rms_norm of a wide weight");
      double half = 0;
      const int64_t first = r * width + i / (width / 2) * (width / 2);
      for (int64_t j = 0; j < width / 2; ++j) half += x[first + j] * x[first + j] / (width / 2);
      require(is_near(heads[r * width + i], value / std::sqrt(half + 1e-6), dtype), "rms_norm_heads");
      require(doubled[r * width + i] == 2 * value, "add_rows");
      const double spread = std::sqrt(std::fmax(0.0, square - mean * mean) + 1e-6);
      require(is_near(centred[r * width + i], (value - mean) / spread, dtype), "layer_norm");
      require(turned[r * width + i] == x[r * width + (i + width / 2) % width], "rotate");
    }
  }
}

// Callers take turns, and the number of threads changes meanwhile.
void check_pool() {
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([c] {
      for (int round = 0; round < 300; ++round) {
        const int64_t count = round % 17;
        std::vector<int> times(count);
        parallel_for(count, [&](int64_t piece) { times[piece] += 1 + c; });
        for (const int done : times) require(done == 1 + c, "a piece runs once");
      }
    });
  }
  for (const int count : {1, 3, 2, 5, 4, 2}) set_num_threads(count);
  for (auto& caller : callers) caller.join();
}

void check_all(int dtype) {
  for (const int64_t rows : {1, 2, 5, 14, 15, 29})
    for (const auto& [outputs, inputs] : {std::pair{1, 1}, {31, 33}, {33, 7}, {70, 130}})
      check_linear(dtype, rows, outputs, inputs);
  for (const int width : {16, 40, 80}) {
    check_segments(dtype, 2, width, {0, 1, 4, 21});
    check_segments(dtype, 1, width, {0, 300});
    for (const int block_size : {4, 16})
      for (const auto& [context, length] : {std::pair{0, 1}, {20, 1}, {300, 1}, {7, 19}, {250, 9}})
        for (const int window : {0, 1, 40}) check_paged(dtype, width, block_size, context, length, window);
  }
  for (const int window : {0, 1500}) check_paged(dtype, 16, 16, 2100, 2, window);  // keys that threads share
  for (const int64_t rows : {1, 3})
    for (const int64_t width : {2, 30, 64, 130}) check_rows(dtype, rows, width);
}

}  // namespace

int main() {
  check_pool();
  for (const char* set : {"portable", "avx2", "avx512"}) {
    if (tpt_use_isa(set) != 0) continue;
    check_resize();
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      for (const int dtype : {0, 1}) check_all(dtype);
    }
    std::printf("%s: all kernels give what plain loops give\n", set);
  }
}
