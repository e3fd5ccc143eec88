// The elementwise functors: float in, float out, one struct for each row of generator/ops.py, same name.
//
// This header compiles for the device (nvcc) and for the host (any C++17 compiler), where the tests
// compare it with the float64 meaning that the table gives.  Both run the same formulas; they differ only
// in the primitives of comfuse::fn::detail.
//
// Accuracy: a few float32 ulp, unless a functor says otherwise; in any case far below the rounding of
// bf16 (2^-9) and fp16 (2^-12).  NaN propagates, through Minimum, Maximum and Relu too.
#ifndef COMFUSE_FUNCTORS_HPP_
#define COMFUSE_FUNCTORS_HPP_

#ifdef __CUDACC__
#define CF_HD __host__ __device__ __forceinline__
#else
#include <cmath>
#define CF_HD inline
#endif

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

}  // namespace detail

// --- arithmetic ---

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

// --- exponentials and logarithms ---

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
struct Pow {
  static CF_HD float apply(float a, float b) { return ::powf(a, b); }
};

// --- other functions ---

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

// --- activations ---

struct Sigmoid {
  static CF_HD float apply(float x) { return detail::sigmoid_of_scaled(x * detail::kLog2E); }
};
struct Relu {
  static CF_HD float apply(float x) { return detail::max_nan(x, 0.0f); }
};
struct LeakyRelu {
  static CF_HD float apply(float x, float slope) { return x > 0.0f ? x : x * slope; }
};
struct Silu {
  static CF_HD float apply(float x) { return x * detail::sigmoid_of_scaled(x * detail::kLog2E); }
};
struct Gelu {
  // x Phi(x) with Phi(x) = sigmoid(x P(x^2)), P the minimax polynomial of logit(Phi(x)) / x on |x| < 5:
  // relative error 6e-6 there, for negative x too, where 1 + erf cancels; absolute error 1e-9 beyond,
  // where P stays positive.  The coefficients carry the factor log2(e).
  static CF_HD float apply(float x) {
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
    return x * detail::sigmoid_of_scaled(x * p);
  }
};
struct GeluTanh {
  // x (1 + tanh u) / 2 = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3): nothing cancels.
  static CF_HD float apply(float x) {
    constexpr float c1 = 2.0f * 0.7978845608028654f * detail::kLog2E;
    constexpr float c3 = c1 * 0.044715f;
    return x * detail::sigmoid_of_scaled(x * (c1 + c3 * (x * x)));
  }
};
struct Softplus {
  static CF_HD float apply(float x) {
    return detail::max_nan(x, 0.0f) + ::log1pf(detail::exp2(-::fabsf(x) * detail::kLog2E));
  }
};

// --- choice and comparison: true is anything but 0, results are 1 or 0 ---

struct Where {
  static CF_HD float apply(float condition, float a, float b) { return condition != 0.0f ? a : b; }
};
struct Eq {
  static CF_HD float apply(float a, float b) { return a == b ? 1.0f : 0.0f; }
};
struct Ne {
  static CF_HD float apply(float a, float b) { return a != b ? 1.0f : 0.0f; }
};
struct Lt {
  static CF_HD float apply(float a, float b) { return a < b ? 1.0f : 0.0f; }
};
struct Le {
  static CF_HD float apply(float a, float b) { return a <= b ? 1.0f : 0.0f; }
};
struct Gt {
  static CF_HD float apply(float a, float b) { return a > b ? 1.0f : 0.0f; }
};
struct Ge {
  static CF_HD float apply(float a, float b) { return a >= b ? 1.0f : 0.0f; }
};
struct LogicalAnd {
  static CF_HD float apply(float a, float b) { return a != 0.0f && b != 0.0f ? 1.0f : 0.0f; }
};
struct LogicalOr {
  static CF_HD float apply(float a, float b) { return a != 0.0f || b != 0.0f ? 1.0f : 0.0f; }
};
struct LogicalNot {
  static CF_HD float apply(float x) { return x == 0.0f ? 1.0f : 0.0f; }
};

}  // namespace fn

// --- the same as expressions: Add<A, B> is the node that applies fn::Add to the values of A and B ---

template <class Fn, class... X>
struct Map;

template <class A, class B>
using Add = Map<fn::Add, A, B>;
template <class A, class B>
using Sub = Map<fn::Sub, A, B>;
template <class A, class B>
using Mul = Map<fn::Mul, A, B>;
template <class A, class B>
using Div = Map<fn::Div, A, B>;
template <class X>
using Neg = Map<fn::Neg, X>;
template <class X>
using Abs = Map<fn::Abs, X>;
template <class A, class B>
using Minimum = Map<fn::Minimum, A, B>;
template <class A, class B>
using Maximum = Map<fn::Maximum, A, B>;
template <class X>
using Square = Map<fn::Square, X>;
template <class X>
using Sqrt = Map<fn::Sqrt, X>;
template <class X>
using Rsqrt = Map<fn::Rsqrt, X>;
template <class X>
using Reciprocal = Map<fn::Reciprocal, X>;
template <class X>
using Exp = Map<fn::Exp, X>;
template <class X>
using Exp2 = Map<fn::Exp2, X>;
template <class X>
using Log = Map<fn::Log, X>;
template <class X>
using Log2 = Map<fn::Log2, X>;
template <class X>
using Log1p = Map<fn::Log1p, X>;
template <class X>
using Expm1 = Map<fn::Expm1, X>;
template <class X>
using Tanh = Map<fn::Tanh, X>;
template <class X>
using Sigmoid = Map<fn::Sigmoid, X>;
template <class X>
using Erf = Map<fn::Erf, X>;
template <class X>
using Sin = Map<fn::Sin, X>;
template <class X>
using Cos = Map<fn::Cos, X>;
template <class A, class B>
using Pow = Map<fn::Pow, A, B>;
template <class X>
using Relu = Map<fn::Relu, X>;
template <class A, class B>
using LeakyRelu = Map<fn::LeakyRelu, A, B>;
template <class X>
using Silu = Map<fn::Silu, X>;
template <class X>
using Gelu = Map<fn::Gelu, X>;
template <class X>
using GeluTanh = Map<fn::GeluTanh, X>;
template <class X>
using Softplus = Map<fn::Softplus, X>;
template <class X>
using Sign = Map<fn::Sign, X>;
template <class A, class B, class C>
using Where = Map<fn::Where, A, B, C>;
template <class A, class B>
using Eq = Map<fn::Eq, A, B>;
template <class A, class B>
using Ne = Map<fn::Ne, A, B>;
template <class A, class B>
using Lt = Map<fn::Lt, A, B>;
template <class A, class B>
using Le = Map<fn::Le, A, B>;
template <class A, class B>
using Gt = Map<fn::Gt, A, B>;
template <class A, class B>
using Ge = Map<fn::Ge, A, B>;
template <class A, class B>
using LogicalAnd = Map<fn::LogicalAnd, A, B>;
template <class A, class B>
using LogicalOr = Map<fn::LogicalOr, A, B>;
template <class X>
using LogicalNot = Map<fn::LogicalNot, X>;

}  // namespace comfuse

#endif
