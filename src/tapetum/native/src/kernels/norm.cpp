#include "norm.h"

#include <cmath>

#include "element.h"

namespace tapetum {
namespace TPT_ISA {
namespace {

constexpr int kChains = 4;  // sums side by side, so that an addition need not wait for the one before

// The sum of f over a row: vectors in kChains chains, then the values that fill no vector.
template <class Element, class OfVector, class OfOne>
float sum_row(const Element* x, int64_t width, const OfVector& of_vector, const OfOne& of_one) {
  Vec chains[kChains] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + kChains * W <= width; i += kChains * W)
    for (int c = 0; c < kChains; ++c) chains[c] = of_vector(load(x + i + c * W), chains[c]);
  for (; i + W <= width; i += W) chains[0] = of_vector(load(x + i), chains[0]);
  float total = sum((chains[0] + chains[1]) + (chains[2] + chains[3]));
  for (; i < width; ++i) total += of_one(wide(x[i]));
  return total;
}

inline Vec rounded(Vec a, const float*) { return a; }
inline Vec rounded(Vec a, const bf16*) {
  bf16 narrowed[W];
  store(narrowed, a);
  return load(narrowed);
}
inline float rounded(float a, const float*) { return a; }
inline float rounded(float a, const bf16*) { return widen(narrow(a)); }

template <class Element, class Factor>
void rms_norm_row(const Element* x, const Factor* weight, float eps, int64_t width, Element* out) {
  const float squares = sum_row(
      x, width, [](Vec v, Vec acc) { return fma(v, v, acc); }, [](float v) { return v * v; });
  const float scale = 1.f / std::sqrt(squares / float(width) + eps);
  int64_t i = 0;
  for (; i + W <= width; i += W) store(out + i, rounded(load(x + i) * all(scale), weight) * load(weight + i));
  for (; i < width; ++i) put(out + i, rounded(wide(x[i]) * scale, weight) * wide(weight[i]));
}

template <class Element>
void layer_norm_row(const Element* x, const Element* weight, const Element* bias, float eps, int64_t width,
                    Element* out) {
  const float mean = sum_row(
                         x, width, [](Vec v, Vec acc) { return acc + v; }, [](float v) { return v; }) /
                     float(width);
  const Vec means = all(mean);
  const float squares = sum_row(
      x, width, [means](Vec v, Vec acc) { return fma(v - means, v - means, acc); },
      [mean](float v) { return (v - mean) * (v - mean); });
  const float scale = 1.f / std::sqrt(squares / float(width) + eps);
  int64_t i = 0;
  for (; i + W <= width; i += W)
    store(out + i, fma((load(x + i) - means) * all(scale), load(weight + i), load(bias + i)));
  for (; i < width; ++i) put(out + i, (wide(x[i]) - mean) * scale * wide(weight[i]) + wide(bias[i]));
}

template <class Element, class Factor>
void rms_norm_all(const NormShape& shape, const void* x, const void* weight, int64_t rows, void* out) {
  for (int64_t row = 0; row < rows; ++row)
    rms_norm_row(static_cast<const Element*>(x) + row * shape.width, static_cast<const Factor*>(weight), shape.eps,
                 shape.width, static_cast<Element*>(out) + row * shape.width);
}

template <class Element>
void layer_norm_all(const NormShape& shape, const void* x, const void* weight, const void* bias, int64_t rows,
                    void* out) {
  for (int64_t row = 0; row < rows; ++row)
    layer_norm_row(static_cast<const Element*>(x) + row * shape.width, static_cast<const Element*>(weight),
                   static_cast<const Element*>(bias), shape.eps, shape.width,
                   static_cast<Element*>(out) + row * shape.width);
}

}  // namespace

void rms_norm_rows(const NormShape& shape, const void* x, const void* weight, int64_t rows, void* out) {
  if (!shape.dtype) rms_norm_all<float, float>(shape, x, weight, rows, out);
  else if (shape.has_wide_weight) rms_norm_all<bf16, float>(shape, x, weight, rows, out);
  else rms_norm_all<bf16, bf16>(shape, x, weight, rows, out);
}

void layer_norm_rows(const NormShape& shape, const void* x, const void* weight, const void* bias, int64_t rows,
                     void* out) {
  shape.dtype ? layer_norm_all<bf16>(shape, x, weight, bias, rows, out)
              : layer_norm_all<float>(shape, x, weight, bias, rows, out);
}

}  // namespace TPT_ISA
}  // namespace tapetum
