// What the functors are made of: the device's approximate instructions, and on the host what stands in for
// them.
#ifndef COMFUSE_FUNCTORS_PRIMITIVES_HPP_
#define COMFUSE_FUNCTORS_PRIMITIVES_HPP_

#include "comfuse/host_device.hpp"

namespace comfuse {
namespace fn {
namespace detail {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// 2^x.  ex2.approx: relative error 2^-22; subnormal results become 0.
CF_HD float exp2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return ::exp2f(x);
#endif
}

// 1 / x, 1 ulp; 0 where |x| > 2^126, infinite where |x| < 2^-126.
CF_HD float rcp(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

CF_HD float max_nan(float a, float b) {
#ifdef __CUDA_ARCH__
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a != a || a > b ? a : b;
#endif
}

CF_HD float min_nan(float a, float b) {
#ifdef __CUDA_ARCH__
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a != a || a < b ? a : b;
#endif
}

// 1 / (1 + exp(-x)), given x * log2(e).
CF_HD float sigmoid_of_scaled(float x_log2e) { return rcp(1.0f + exp2(-x_log2e)); }

// The normal distribution function, as sigmoid(x P(x^2)), P the minimax polynomial of logit(Phi(x)) / x on
// |x| < 5: relative error 6e-6 there, for negative x too, where 1 + erf cancels; absolute error 1e-9
// beyond, where P stays positive.  The coefficients carry the factor log2(e).
CF_HD float normal_cdf(float x) {
  float const t = x * x;
  float p = 1.85994015e-12f;
  p = p * t - 2.76003859e-10f;
  p = p * t + 1.77582962e-08f;
  p = p * t - 6.45551154e-07f;
  p = p * t + 1.4239522e-05f;
  p = p * t - 0.000175088979f;
  p = p * t - 5.13258892e-05f;
  p = p * t + 0.104784884f;
  p = p * t + 2.30222583f;
  return sigmoid_of_scaled(x * p);
}

// Within [0, 1], which is part of the instruction that computes x; 0 for NaN.
CF_HD float saturate(float x) {
#ifdef __CUDA_ARCH__
  return __saturatef(x);
#else
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
#endif
}

// tanh(x).  tanh.approx: PTX promises a relative error of 2^-11; on an H200 the absolute one is at most 8e-6.
CF_HD float tanh_approx(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return ::tanhf(x);
#endif
}

// grad (1 + t + h (1 - t^2) slope) / 2, in an order in which huge h gives no NaN.
CF_HD float fast_derivative(float grad, float h, float t, float slope) {
  return grad * (((1.0f - t * t) * h * slope + t) * 0.5f + 0.5f);
}

// u of GELU's tanh form, where x = 2 h.
constexpr float kGeluTanhOfHalf = 2.0f * 0.79788456f, kGeluTanhOfHalfCubic = 8.0f * 0.79788456f * 0.044715f;
CF_HD float gelu_tanh_of_double(float h) { return h * (kGeluTanhOfHalf + kGeluTanhOfHalfCubic * (h * h)); }

// 2 sqrt(2 / pi) log2(e): GELU's tanh form is x sigmoid(2 u), and 2 u log2(e) = kGeluTanh (x + 0.044715 x^3).
constexpr float kGeluTanh = 2.0f * 0.7978845608028654f * kLog2E, kGeluTanhCubic = kGeluTanh * 0.044715f;

}  // namespace detail

}  // namespace fn
}  // namespace comfuse

#endif
