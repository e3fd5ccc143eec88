// Activations.
#ifndef COMFUSE_FUNCTORS_ACTIVATIONS_HPP_
#define COMFUSE_FUNCTORS_ACTIVATIONS_HPP_

#include "comfuse/functors/primitives.hpp"

namespace comfuse {
namespace fn {

struct Sigmoid {
  static CF_HD float apply(float x) { return detail::sigmoid_of_scaled(x * detail::kLog2E); }
};
struct NormalCdf {
  static CF_HD float apply(float x) { return detail::normal_cdf(x); }
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

// For results that are rounded to bfloat16: one instruction of the special function unit where exp and rcp
// are two.  All but tanh are those of twice the argument, x = 2 h: x sigmoid(2 u) = h + h tanh(u).
struct FastTanh {
  static CF_HD float apply(float x) { return detail::tanh_approx(x); }
};
struct SigmoidOfDouble {
  static CF_HD float apply(float h) { return detail::tanh_approx(h) * 0.5f + 0.5f; }
};
struct SiluOfDouble {
  static CF_HD float apply(float h) { return h * detail::tanh_approx(h) + h; }
};
struct QuickGeluOfDouble {
  static CF_HD float apply(float h) { return h * detail::tanh_approx(1.702f * h) + h; }
};
struct HalfGeluOfQuadruple {
  // Phi(x) = (1 + tanh(u)) / 2 with u = a P(a^2), x = 4 a, minimax for GELU: within 2.6e-5 of it.  From |x| =
  // 4 on u is linear: so it keeps its sign.
  static CF_HD float apply(float a) {
    float const t = detail::saturate(a * a);
    return a * detail::tanh_approx(a * ((-0.360015845f * t + 2.36838545f) * t + 3.19002988f)) + a;
  }
};
struct GeluTanhOfDouble {
  static CF_HD float apply(float h) { return h * detail::tanh_approx(detail::gelu_tanh_of_double(h)) + h; }
};

}  // namespace fn
}  // namespace comfuse

#endif
