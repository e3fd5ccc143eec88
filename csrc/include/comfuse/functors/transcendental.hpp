// Exponentials, logarithms, trigonometric functions and the error function.
#ifndef COMFUSE_FUNCTORS_TRANSCENDENTAL_HPP_
#define COMFUSE_FUNCTORS_TRANSCENDENTAL_HPP_

#include "comfuse/functors/primitives.hpp"

namespace comfuse {
namespace fn {

struct Exp {
  // Rounding x * log2(e) costs 2^-24 |x log2(e)| on top of exp2's 2^-22: at most 8e-6, at |x| = 88.
  static CF_HD float apply(float x) { return detail::exp2(x * detail::kLog2E); }
};
struct Exp2 {
  static CF_HD float apply(float x) { return detail::exp2(x); }
};
// lg2.approx has an absolute, not a relative, error near 1: the logarithms stay with the accurate library.
struct Log {
  static CF_HD float apply(float x) { return ::logf(x); }
};
struct Log2 {
  static CF_HD float apply(float x) { return ::log2f(x); }
};
struct Log1p {
  static CF_HD float apply(float x) { return ::log1pf(x); }
};
struct Expm1 {
  static CF_HD float apply(float x) { return ::expm1f(x); }
};
struct Tanh {
  // tanh.approx has a relative error of 2^-11, above the rounding of fp16.
  static CF_HD float apply(float x) { return ::tanhf(x); }
};
struct Erf {
  static CF_HD float apply(float x) { return ::erff(x); }
};
struct Sin {
  static CF_HD float apply(float x) { return ::sinf(x); }
};
struct Cos {
  static CF_HD float apply(float x) { return ::cosf(x); }
};
struct Tan {
  static CF_HD float apply(float x) { return ::tanf(x); }
};
struct Erfc {
  static CF_HD float apply(float x) { return ::erfcf(x); }
};
struct Asin {
  static CF_HD float apply(float x) { return ::asinf(x); }
};
struct Acos {
  static CF_HD float apply(float x) { return ::acosf(x); }
};
struct Atan {
  static CF_HD float apply(float x) { return ::atanf(x); }
};
struct Asinh {
  static CF_HD float apply(float x) { return ::asinhf(x); }
};
struct Acosh {
  static CF_HD float apply(float x) { return ::acoshf(x); }
};
struct Atanh {
  static CF_HD float apply(float x) { return ::atanhf(x); }
};

}  // namespace fn
}  // namespace comfuse

#endif
