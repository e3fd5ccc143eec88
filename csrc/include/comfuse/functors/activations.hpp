// Activations.
#ifndef COMFUSE_FUNCTORS_ACTIVATIONS_HPP_
#define COMFUSE_FUNCTORS_ACTIVATIONS_HPP_

#include "comfuse/functors/primitives.hpp"

namespace comfuse {
namespace fn {

struct Sigmoid {
  static CF_HD float apply(float x) { return detail::sigmoid_of_scaled(x * detail::kLog2E); }
};
struct Relu {
  static CF_HD float apply(float x) { return detail::max_nan(x, 0.0f); }
};
struct Elu {
  static CF_HD float apply(float x, float alpha) { return x > 0.0f ? x : alpha * ::expm1f(x); }
};
struct LeakyRelu {
  static CF_HD float apply(float x, float slope) { return x > 0.0f ? x : x * slope; }
};
struct Silu {
  static CF_HD float apply(float x) { return x * detail::sigmoid_of_scaled(x * detail::kLog2E); }
};
struct Gelu {
  static CF_HD float apply(float x) { return x * detail::normal_cdf(x); }
};
struct GeluTanh {
  // x (1 + tanh u) / 2 = x sigmoid(2 u) with u = sqrt(2/pi) (x + 0.044715 x^3): nothing cancels.
  static CF_HD float apply(float x) {
    return x * detail::sigmoid_of_scaled(x * (detail::kGeluTanh + detail::kGeluTanhCubic * (x * x)));
  }
};
struct QuickGelu {
  static CF_HD float apply(float x) { return x * detail::sigmoid_of_scaled(x * (1.702f * detail::kLog2E)); }
};
struct Mish {
  // tanh(softplus(x)) = n / (n + 2) with n = e^x (e^x + 2), which does not cancel; 1 beyond x = 30.
  static CF_HD float apply(float x) {
    float const e = detail::exp2(detail::min_nan(x, 30.0f) * detail::kLog2E), n = e * (e + 2.0f);
    return x * (n * detail::rcp(n + 2.0f));
  }
};
struct Hardsigmoid {
  static CF_HD float apply(float x) {
    return detail::min_nan(detail::max_nan(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
  }
};
struct Hardswish {
  static CF_HD float apply(float x) { return x * Hardsigmoid::apply(x); }
};
struct Softplus {
  static CF_HD float apply(float x) {
    return detail::max_nan(x, 0.0f) + ::log1pf(detail::exp2(-::fabsf(x) * detail::kLog2E));
  }
};

// For results that are rounded to bfloat16: an absolute error of about 2^-11 |x|, where the ones above have a
// relative one.
struct FastTanh {
  static CF_HD float apply(float x) { return detail::tanh_approx(x); }
};
struct FastSigmoid {
  static CF_HD float apply(float x) { return detail::tanh_approx(0.5f * x) * 0.5f + 0.5f; }
};
struct FastSilu {
  static CF_HD float apply(float x) { return detail::fast_gate(x, 0.5f * x); }
};
struct FastQuickGelu {
  static CF_HD float apply(float x) { return detail::fast_gate(x, 0.851f * x); }
};
struct FastGelu {
  // The minimax tanh(x (a + b x^2)) for erf(x / sqrt(2)): within 2.8e-4 of GELU.
  static CF_HD float apply(float x) {
    return detail::fast_gate(x, x * (0.80015003f + 0.034704101f * (x * x)));
  }
};
struct FastGeluTanh {
  static CF_HD float apply(float x) {
    return detail::fast_gate(x, x * (0.79788456f + 0.79788456f * 0.044715f * (x * x)));
  }
};

}  // namespace fn
}  // namespace comfuse

#endif
