// What may follow a product: activations over vectors of float32.
#pragma once
#include "vec.h"

namespace tapetum {
namespace TPT_ISA {

inline Vec sigmoid_times(Vec x, Vec slope) {  // x sigmoid(slope x)
  return x / (all(1.f) + exp(zero() - x * slope));
}

// x times the normal distribution's share below x. erfc(z) = e^(-z^2) t p(t) with t = 1 / (1 + 0.4 z): p is our fit of
// degree 8 over z from 0 to 10, within 1e-7 of the value.
inline Vec gelu(Vec x) {
  const Vec size = max(x, zero() - x);
  const Vec z = size * all(0.70710678f);
  const Vec t = all(1.f) / fma(all(0.4f), z, all(1.f));
  Vec p = all(4.194180344e-02f);
  p = fma(p, t, all(-1.435891298e-01f));
  p = fma(p, t, all(9.055944264e-02f));
  p = fma(p, t, all(8.068357197e-02f));
  p = fma(p, t, all(8.460270112e-02f));
  p = fma(p, t, all(1.914151356e-01f));
  p = fma(p, t, all(2.023696411e-01f));
  p = fma(p, t, all(2.263791328e-01f));
  p = fma(p, t, all(2.256377676e-01f));
  const Vec tail = p * t * exp(zero() - z * z);
  return max(x, zero()) - size * all(0.5f) * tail;
}

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel, 2016): the tanh is a sigmoid of twice as much.
inline Vec gelu_tanh(Vec x) {
  const Vec slope = fma(x * x, all(0.0713548163f), all(1.595769122f));
  return sigmoid_times(x, slope);
}

}  // namespace TPT_ISA
}  // namespace tapetum
