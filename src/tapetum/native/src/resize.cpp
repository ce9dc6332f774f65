// From the rows of a decoded picture, as they come, to its patches, without a copy of either picture in between.
//
// Source rows are taken four at a time. What they give across is kept as cells in a ring just large enough for the
// taps of one result row; a result row goes on as soon as the last row it needs is there.
#include "resize.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "api.h"
#include "filter.h"
#include "patchify.h"

namespace tapetum {
namespace {

struct Size {
  int64_t width, height;
};

int64_t round_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

// Weights of an axis in groups of four taps. `is_aligned`: a group begins at a multiple of four of the source.
class Axis {
 public:
  Axis(int64_t source, int64_t used, bool is_aligned, const ResizeKernels& kernels) {
    const auto all = bicubic_taps(int32_t(source), int32_t(used));
    const auto lead = [&](const Taps& taps) { return is_aligned ? taps.start % kTaps : 0; };
    for (const auto& taps : all)
      groups_ = std::max(groups_, int(round_up(lead(taps) + int64_t(taps.weights.size()), kTaps) / kTaps));
    for (const auto& taps : all) {
      // At the far end the window begins earlier, so that it never leaves a source of at least its own length.
      const int64_t latest = std::max<int64_t>(0, (is_aligned ? round_up(source, kTaps) : source) - groups_ * kTaps);
      const int32_t start = int32_t(std::min<int64_t>(taps.start - lead(taps), latest));
      std::vector<int32_t> window(groups_ * kTaps);
      std::copy(taps.weights.begin(), taps.weights.end(), window.begin() + (taps.start - start));
      starts_.push_back(start);
      ends_.push_back(taps.start + int32_t(taps.weights.size()));
      for (int group = 0; group < groups_; ++group) {
        int32_t four[kTaps];
        std::copy_n(window.begin() + group * kTaps, kTaps, four);
        weights_.push_back(kernels.pack(four));
      }
    }
  }

  int groups() const { return groups_; }
  const int32_t* starts() const { return starts_.data(); }
  int32_t start(int64_t i) const { return starts_[i]; }
  int32_t end(int64_t i) const { return ends_[i]; }  // behind the last source sample that result i needs
  const Weights* weights(int64_t i) const { return weights_.data() + i * groups_; }

 private:
  int groups_ = 1;  // the same for all results, with weights of zero where one needs fewer
  std::vector<int32_t> starts_, ends_;
  std::vector<Weights> weights_;
};

// Both passes over one frame: across, then down.
class Scaler {
 public:
  Scaler(Size source, Size used, const ResizeKernels& kernels)
      : kernels_(kernels),
        source_(source),
        used_(used),
        across_(source.width, used.width, false, kernels),
        down_(source.height, used.height, true, kernels),
        cell_row_(round_up(used.width, kPixelStep) * kCellBytes),
        ring_(cell_row_ * ring_groups()),
        row_(round_up(used.width, kPixelStep) * kPixelBytes),
        window_(down_.groups()) {}

  // Bytes that are read of a source row; those behind its pixels weigh nothing.
  int64_t row_bytes() const { return std::max<int64_t>(source_.width, across_.groups() * kTaps) * kPixelBytes; }

  // The next `count` rows, four but for the end of a frame. `put(y, row)` gets the result rows that are done.
  template <class Put>
  void take(const uint8_t* const (&rows)[kTaps], int64_t count, const Put& put) {
    kernels_.across(rows, across_.starts(), across_.weights(0), across_.groups(), used_.width,
                    cells(num_taken_ / kTaps));
    num_taken_ += count;
    for (; num_put_ < used_.height && down_.end(num_put_) <= num_taken_; ++num_put_) {
      const int64_t first = down_.start(num_put_) / kTaps;
      for (int64_t group = 0; group < down_.groups(); ++group) window_[group] = cells(first + group);
      kernels_.down(window_.data(), down_.weights(num_put_), down_.groups(), used_.width, row_.data());
      put(num_put_, row_.data());
    }
    if (num_taken_ == source_.height) num_taken_ = num_put_ = 0;
  }

 private:
  // One more than the groups of a window: a result may wait for one before it whose weights reach further.
  int64_t ring_groups() const { return down_.groups() + 1; }

  uint8_t* cells(int64_t row_group) { return ring_.data() + row_group % ring_groups() * cell_row_; }

  const ResizeKernels& kernels_;
  const Size source_, used_;
  const Axis across_, down_;
  const int64_t cell_row_;
  std::vector<uint8_t> ring_, row_;
  std::vector<const uint8_t*> window_;
  int64_t num_taken_ = 0, num_put_ = 0;
};

class Resizer {
 public:
  // `is_down_first`: Pillow may go down before it goes across; the rounding in between makes it another result.
  Resizer(Size source, Size used, bool is_down_first, PatchGrid grid)
      : kernels_(TPT_CHOOSE(resize_kernels)),
        source_(source),
        used_(used),
        grid_(grid),
        first_(source, is_down_first ? Size{source.width, used.height} : used, kernels_),
        plane_(round_up(used.width, kPixelStep)),
        planes_(3 * plane_),
        widened_(kTaps * first_.row_bytes()) {
    if (!is_down_first) return;
    second_ = std::make_unique<Scaler>(Size{source.width, used.height}, used, kernels_);
    between_.resize(kTaps * std::max(second_->row_bytes(), round_up(source.width, kPixelStep) * kPixelBytes));
  }

  // The next `count` rows of a frame: a multiple of four, but for its end. Result rows that are done, or -1.
  int64_t feed(const uint8_t* rows, int64_t stride, int pixel_bytes, int64_t count, uint8_t* patches) {
    const bool is_end = num_fed_ + count == source_.height;
    if (count < 1 || num_fed_ + count > source_.height || (count % kTaps && !is_end)) return -1;
    for (int64_t row = 0; row < count; row += kTaps)
      take(rows + row * stride, stride, pixel_bytes, std::min<int64_t>(count - row, kTaps), patches);
    num_fed_ += count;
    const int64_t finished = num_finished_;
    if (is_end) num_fed_ = num_finished_ = 0;
    return finished;
  }

 private:
  void take(const uint8_t* first, int64_t stride, int pixel_bytes, int64_t count, uint8_t* patches) {
    const uint8_t* rows[kTaps];
    for (int64_t i = 0; i < kTaps; ++i) rows[i] = first + std::min(i, count - 1) * stride;  // rows beyond weigh nothing
    if (pixel_bytes != kPixelBytes || first_.row_bytes() > source_.width * kPixelBytes) widen(rows, pixel_bytes);
    first_.take(rows, count, [&](int64_t y, const uint8_t* row) {
      if (second_)
        pass_on(y, row, patches);
      else
        finish(y, row, patches);
    });
  }

  // Rows of three bytes a pixel, or narrower than a window, as rows that `across` can read.
  void widen(const uint8_t* (&rows)[kTaps], int pixel_bytes) {
    for (int64_t i = 0; i < kTaps; ++i) {
      uint8_t* wide = widened_.data() + i * first_.row_bytes();
      for (int64_t x = 0; x < source_.width; ++x) memcpy(wide + x * kPixelBytes, rows[i] + x * pixel_bytes, 3);
      rows[i] = wide;
    }
  }

  // A row that has been made down, and goes across with its neighbours.
  void pass_on(int64_t y, const uint8_t* row, uint8_t* patches) {
    const int64_t bytes = int64_t(between_.size()) / kTaps;
    memcpy(between_.data() + y % kTaps * bytes, row, source_.width * kPixelBytes);
    const int64_t count = y % kTaps + 1;
    if (count < kTaps && y + 1 < used_.height) return;
    const uint8_t* rows[kTaps];
    for (int64_t i = 0; i < kTaps; ++i) rows[i] = between_.data() + i * bytes;
    second_->take(rows, count, [&](int64_t result, const uint8_t* pixels) { finish(result, pixels, patches); });
  }

  void finish(int64_t y, const uint8_t* row, uint8_t* patches) {
    uint8_t* const colours[3] = {planes_.data(), planes_.data() + plane_, planes_.data() + 2 * plane_};
    kernels_.split(row, used_.width, colours);
    grid_.put_row(y, {colours[0], colours[1], colours[2]}, patches);
    num_finished_ = y + 1;
  }

  const ResizeKernels& kernels_;
  const Size source_, used_;
  const PatchGrid grid_;
  Scaler first_;
  std::unique_ptr<Scaler> second_;  // across alone, where the first goes down alone
  const int64_t plane_;
  std::vector<uint8_t> planes_, widened_, between_;
  int64_t num_fed_ = 0, num_finished_ = 0;
};

}  // namespace
}  // namespace tapetum

// Null where the sizes do not go together or there is no memory. One thread at a time may use a resizer.
TPT_API void* tpt_resizer_new(int64_t width, int64_t height, int64_t used_width, int64_t used_height,
                              int is_down_first, int64_t patch, int64_t merge, int64_t fold) {
  using namespace tapetum;
  const int64_t sides[] = {width, height, used_width, used_height};
  for (int64_t side : sides)
    if (side < 1 || side > kMaxSide) return nullptr;
  if (patch < 1 || merge < 1 || fold < 1 || used_width % (patch * merge) || used_height % (patch * merge)) return nullptr;
  try {
    return new Resizer({width, height}, {used_width, used_height}, is_down_first != 0, {used_width, patch, merge, fold});
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

TPT_API int64_t tpt_resizer_feed(void* resizer, const uint8_t* rows, int64_t stride, int pixel_bytes, int64_t count,
                                 uint8_t* patches) {
  return static_cast<tapetum::Resizer*>(resizer)->feed(rows, stride, pixel_bytes, count, patches);
}

TPT_API void tpt_resizer_free(void* resizer) { delete static_cast<tapetum::Resizer*>(resizer); }
