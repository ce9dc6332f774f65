#include "filter.h"

#include <algorithm>
#include <cmath>

#include "resize.h"

namespace tapetum {
namespace {

constexpr double kSupport = 2.0;  // of the filter, on either side

double bicubic(double x) {  // Keys, a = -0.5; every operation in Pillow's order
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

int32_t rounded(double weight) {
  const double scaled = weight * (1 << kPrecisionBits);
  return int32_t(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

Taps trimmed(int32_t start, std::vector<int32_t> weights) {
  while (weights.size() > 1 && weights.back() == 0) weights.pop_back();
  const auto first = std::find_if(weights.begin(), weights.end() - 1, [](int32_t w) { return w != 0; });
  start += int32_t(first - weights.begin());
  weights.erase(weights.begin(), first);
  return {start, std::move(weights)};
}

}  // namespace

std::vector<Taps> bicubic_taps(int32_t source, int32_t used) {
  std::vector<Taps> all;
  all.reserve(used);
  const double scale = double(source) / used;
  const double filter_scale = std::max(scale, 1.0);
  const double support = kSupport * filter_scale;
  const double inverse = 1.0 / filter_scale;
  for (int32_t i = 0; i < used; ++i) {
    const double center = (i + 0.5) * scale;
    const int32_t start = std::max(int32_t(center - support + 0.5), 0);
    const int32_t end = std::min(int32_t(center + support + 0.5), source);
    std::vector<double> shares(end - start);
    double total = 0.0;
    for (int32_t x = 0; x < end - start; ++x) {
      shares[x] = bicubic((x + start - center + 0.5) * inverse);
      total += shares[x];
    }
    std::vector<int32_t> weights;
    weights.reserve(shares.size());
    for (double share : shares) weights.push_back(rounded(total != 0.0 ? share / total : share));
    all.push_back(trimmed(start, std::move(weights)));
  }
  return all;
}

}  // namespace tapetum
