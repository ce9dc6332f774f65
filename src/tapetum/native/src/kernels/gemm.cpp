// A linear layer: a product, then bias, activation and residual while the sums of a tile are in the first cache.
#include "gemm.h"

#include "gemm_activate.h"
#include "gemm_product.h"

namespace tapetum {
namespace TPT_ISA {
namespace {

// The outputs of a group are `outputs_per_group` neighbours; the last group may have fewer.
template <class E>
class Finish {
 public:
  using Element = typename E::Element;

  Finish(const Weight& weight, const LinearRows& rows)
      : weight_(weight),
        width_(outputs_per_group(weight.activation)),
        residual_(static_cast<const Element*>(rows.residual)),
        ldr_(rows.ldr),
        out_(static_cast<Element*>(rows.out)),
        ldo_(rows.ldo) {}

  void operator()(int64_t, int64_t row, int rows, int64_t group, const float* sums) const {
    const int64_t first = group * width_, count = std::min(width_, weight_.outputs - first);
    if (count == width_) {
      const float* bias = weight_.bias ? weight_.bias + first : nullptr;
      for (int r = 0; r < rows; ++r) {
        const auto* residual = residual_ ? residual_ + (row + r) * ldr_ + first : nullptr;
        finish(sums + r * kGroupColumns, bias, weight_.outputs, residual, out_ + (row + r) * ldo_ + first);
      }
      return;
    }
    float bias[kGroupColumns] = {};
    if (weight_.bias) {
      std::copy_n(weight_.bias + first, count, bias);
      if (has_gate(weight_.activation))
        std::copy_n(weight_.bias + weight_.outputs + first, count, bias + width_);
    }
    for (int r = 0; r < rows; ++r) {
      Element residual[kGroupColumns] = {}, out[kGroupColumns];
      if (residual_) std::copy_n(residual_ + (row + r) * ldr_ + first, count, residual);
      finish(sums + r * kGroupColumns, weight_.bias ? bias : nullptr, width_, residual_ ? residual : nullptr, out);
      std::copy_n(out, count, out_ + (row + r) * ldo_ + first);
    }
  }

 private:
  // A whole group of one row; the bias of the values beside a gate lies `ldb` further.
  void finish(const float* sums, const float* bias, int64_t ldb, const Element* residual, Element* out) const {
    for (int64_t i = 0; i < width_; i += W) {
      Vec sum = load(sums + i);
      if (bias) sum = sum + load(bias + i);
      switch (weight_.activation) {
        case Activation::none:
          break;
        case Activation::quick_gelu:
          sum = sigmoid_times(sum, all(1.702f));
          break;
        case Activation::gelu:
          sum = gelu(sum);
          break;
        case Activation::gelu_tanh:
          sum = gelu_tanh(sum);
          break;
        case Activation::silu_mul:
          sum = sigmoid_times(sum, all(1.f)) * beside_gate(sums, bias, ldb, i);
          break;
        case Activation::gelu_tanh_mul:
          sum = gelu_tanh(sum) * beside_gate(sums, bias, ldb, i);
          break;
      }
      if (residual) sum = sum + load(residual + i);
      store(out + i, sum);
    }
  }

  // What the gate at `i` is multiplied with.
  Vec beside_gate(const float* sums, const float* bias, int64_t ldb, int64_t i) const {
    const Vec sum = load(sums + width_ + i);
    return bias ? sum + load(bias + ldb + i) : sum;
  }

  const Weight& weight_;
  int64_t width_;
  const Element* residual_;
  int64_t ldr_;
  Element* out_;
  int64_t ldo_;
};

template <class E>
void run(const Weight& weight, const LinearRows& rows) {
  const auto* x = static_cast<const typename E::Element*>(rows.x);
  const Finish<E> finish(weight, rows);
  multiply_all(Product<E>{weight, x, rows.ldx, rows.rows, parts_of(weight, rows.rows)}, finish);
}

}  // namespace

void linear_rows(const Weight& weight, const LinearRows& rows) {
  weight.dtype == 0 ? run<Float32>(weight, rows) : run<Bfloat16>(weight, rows);
}

}  // namespace TPT_ISA
}  // namespace tapetum
