// The gradient times the derivative of an activation.  As in aten, `grad` comes first; SigmoidBackward and
// TanhBackward read the function's output.
//
// What is infinite follows the formula: SiluBackward(1, inf) is NaN, inf * 0.
#ifndef COMFUSE_FUNCTORS_BACKWARD_HPP_
#define COMFUSE_FUNCTORS_BACKWARD_HPP_

#include "comfuse/functors/primitives.hpp"

namespace comfuse {
namespace fn {

struct GeluBackward {
  // Phi(x) + x phi(x) = [x >= 0] + phi(x) (x - sign(x) Q(|x|)) with Mills' ratio Q(a) = Phi(-a) / phi(a), so
  // that one exponential serves both terms.  Q is a polynomial in 1 / (a + 2.3), minimax for phi Q: the
  // derivative's absolute error is 2.3e-6, its relative error for x < -1.2, where it is small, 1.2e-4.
  static CF_HD float apply(float grad, float x) {
    constexpr float kLog2Scale = -1.3257480647361592f;  // log2(1 / sqrt(2 pi))
    float const w = detail::rcp(::fabsf(x) + 2.3f);
    float q = -8.340121269f;
    q = q * w + 10.370264053f;
    q = q * w + 1.245937109f;
    q = q * w + 1.066016555f;
    float const density = detail::exp2(x * x * (-0.5f * detail::kLog2E) + kLog2Scale);
    float const step = 0.5f + ::copysignf(0.5f, x);
    return grad * (step + density * (x - ::copysignf(w, x) * q));
  }
};
struct GeluTanhBackward {
  // s + x s (1 - s) (2 u)', s = sigmoid(2 u).  Where x^2 exceeds the bound s (1 - s) is 0, and stays it.
  static CF_HD float apply(float grad, float x) {
    float const t = ::fminf(x * x, 256.0f);
    float const gate = detail::sigmoid_of_scaled(x * (detail::kGeluTanh + detail::kGeluTanhCubic * t));
    float const slope = (detail::kGeluTanh + 3.0f * detail::kGeluTanhCubic * t) * detail::kLn2;
    return grad * (gate + x * (gate * (1.0f - gate) * slope));
  }
};
struct SiluBackward {
  static CF_HD float apply(float grad, float x) {
    float const gate = detail::sigmoid_of_scaled(x * detail::kLog2E);
    return grad * gate * (1.0f + x * (1.0f - gate));
  }
};
struct MishBackward {
  // t + x sigmoid(x) (1 - t^2) with t = tanh(softplus(x)).  In terms of e = e^x, n = e (e + 2), d = n + 2:
  // t = n / d, and sigmoid(x) (1 - t^2) = 4 e (1 + e) / d^2, below float32's resolution from x = 30 on.
  static CF_HD float apply(float grad, float x) {
    float const e = detail::exp2(detail::min_nan(x, 30.0f) * detail::kLog2E), n = e * (e + 2.0f);
    float const r = detail::rcp(n + 2.0f);
    float const slope = x >= 30.0f ? 0.0f : 4.0f * e * (1.0f + e) * r * r;
    return grad * (n * r + x * slope);
  }
};
struct HardswishBackward {
  static CF_HD float apply(float grad, float x) {
    float const rising = x < 3.0f ? grad * (x * (1.0f / 3.0f) + 0.5f) : grad;
    return x <= -3.0f ? 0.0f : rising;
  }
};
struct SoftplusBackward {
  static CF_HD float apply(float grad, float x) {
    return grad * detail::sigmoid_of_scaled(x * detail::kLog2E);
  }
};

// For results that are rounded to bfloat16, from one tanh.approx: with x = 2 h and t = tanh(u),
// x sigmoid(2 u) has the derivative (1 + t + h (1 - t^2) du/dh) / 2.  Where h^2 exceeds its bound, 1 - t^2 is
// 0, and stays it.  Beside the activation itself, of the same h, the compiler takes t only once.
struct SiluBackwardOfDouble {
  static CF_HD float apply(float grad, float h) {
    return detail::fast_derivative(grad, h, detail::tanh_approx(h), 1.0f);
  }
};
struct GeluBackwardOfDouble {
  // Both polynomials are minimax for the derivative itself: within 1.3e-4.
  static CF_HD float apply(float grad, float h) {
    float const s = ::fminf(h * h, 64.0f);
    float const t = detail::tanh_approx(h * (1.39485051f + 0.234796971f * s));
    return detail::fast_derivative(grad, h, t, 1.79714657f - 0.0815606914f * s);
  }
};
struct GeluTanhBackwardOfDouble {
  static CF_HD float apply(float grad, float h) {
    float const t = detail::tanh_approx(detail::gelu_tanh_of_double(h));
    float const slope = detail::kGeluTanhOfHalf + 3.0f * detail::kGeluTanhOfHalfCubic * ::fminf(h * h, 64.0f);
    return detail::fast_derivative(grad, h, t, slope);
  }
};
struct GeluBackwardOfCdf {
  // Phi is what GELU itself needs.  phi(x) = Phi (1 - Phi) P(x^2), P minimax for the derivative: within 9e-5.
  // Where x^2 exceeds its bound, Phi (1 - Phi) is 0 beside Phi, and stays it.
  static CF_HD float apply(float grad, float x, float cdf) {
    float const s = ::fminf(x * x, 64.0f);
    float const ratio = (-0.00363585f * s + 0.22278881f) * s + 1.59420361f;
    return grad * ((cdf - cdf * cdf) * x * ratio + cdf);
  }
};

struct SigmoidBackward {
  static CF_HD float apply(float grad, float out) { return grad * out * (1.0f - out); }
};
struct TanhBackward {
  static CF_HD float apply(float grad, float out) { return grad * (1.0f - out * out); }
};

}  // namespace fn
}  // namespace comfuse

#endif
