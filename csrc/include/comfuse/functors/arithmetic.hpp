// Arithmetic, rounding, roots and powers.
#ifndef COMFUSE_FUNCTORS_ARITHMETIC_HPP_
#define COMFUSE_FUNCTORS_ARITHMETIC_HPP_

#include "comfuse/functors/primitives.hpp"

namespace comfuse {
namespace fn {

struct Add {
  static CF_HD float apply(float a, float b) { return a + b; }
};
struct Sub {
  static CF_HD float apply(float a, float b) { return a - b; }
};
struct Mul {
  static CF_HD float apply(float a, float b) { return a * b; }
};
struct Div {
  static CF_HD float apply(float a, float b) { return a / b; }
};
struct Neg {
  static CF_HD float apply(float x) { return -x; }
};
struct Abs {
  static CF_HD float apply(float x) { return ::fabsf(x); }
};
struct Minimum {
  static CF_HD float apply(float a, float b) { return detail::min_nan(a, b); }
};
struct Maximum {
  static CF_HD float apply(float a, float b) { return detail::max_nan(a, b); }
};
struct Fmin {
  // One of two that is NaN is ignored.
  static CF_HD float apply(float a, float b) { return ::fminf(a, b); }
};
struct Fmax {
  static CF_HD float apply(float a, float b) { return ::fmaxf(a, b); }
};
struct Hypot {
  static CF_HD float apply(float a, float b) { return ::hypotf(a, b); }
};
struct Fmod {
  static CF_HD float apply(float a, float b) { return ::fmodf(a, b); }
};
struct Remainder {
  // Of the sign of b.
  static CF_HD float apply(float a, float b) {
    float const rest = ::fmodf(a, b);
    return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
  }
};
struct Floor {
  static CF_HD float apply(float x) { return ::floorf(x); }
};
struct Ceil {
  static CF_HD float apply(float x) { return ::ceilf(x); }
};
struct Round {
  // Half to even.
  static CF_HD float apply(float x) { return ::rintf(x); }
};
struct Trunc {
  static CF_HD float apply(float x) { return ::truncf(x); }
};
struct Square {
  static CF_HD float apply(float x) { return x * x; }
};
struct Sqrt {
  // sqrt.approx: 1 ulp.
  static CF_HD float apply(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return ::sqrtf(x);
#endif
  }
};
struct Rsqrt {
  // rsqrt.approx: relative error 2^-22.
  static CF_HD float apply(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / ::sqrtf(x);
#endif
  }
};
struct Reciprocal {
  static CF_HD float apply(float x) { return 1.0f / x; }
};
struct Sign {
  static CF_HD float apply(float x) { return float(x > 0.0f) - float(x < 0.0f); }
};
struct Pow {
  static CF_HD float apply(float a, float b) { return ::powf(a, b); }
};

}  // namespace fn
}  // namespace comfuse

#endif
