// The elementwise functors: float in, float out, one struct for each row of generator/ops, same name.
//
// These headers compile for the device (nvcc) and for the host (any C++17 compiler), where the tests
// compare them with the float64 meaning that the table gives.  Both run the same formulas; they differ only
// in the primitives of comfuse::fn::detail.
//
// Accuracy: a few float32 ulp, unless a functor says otherwise; in any case far below the rounding of
// bf16 (2^-9) and fp16 (2^-12).  NaN propagates, through Minimum, Maximum and Relu too.
#ifndef COMFUSE_FUNCTORS_HPP_
#define COMFUSE_FUNCTORS_HPP_

#include "comfuse/functors/activations.hpp"
#include "comfuse/functors/arithmetic.hpp"
#include "comfuse/functors/backward.hpp"
#include "comfuse/functors/choice.hpp"
#include "comfuse/functors/transcendental.hpp"

// The same as expressions: Add<A, B> is the node that applies fn::Add to the values of A and B.
namespace comfuse {

template <class Fn, class... X>
struct Map;

#define CF_UNARY(NAME) \
  template <class A>   \
  using NAME = Map<fn::NAME, A>;
#define CF_BINARY(NAME)       \
  template <class A, class B> \
  using NAME = Map<fn::NAME, A, B>;
#define CF_TERNARY(NAME)               \
  template <class A, class B, class C> \
  using NAME = Map<fn::NAME, A, B, C>;

CF_UNARY(Neg)
CF_UNARY(Abs)
CF_UNARY(Sign)
CF_UNARY(Floor)
CF_UNARY(Ceil)
CF_UNARY(Round)
CF_UNARY(Trunc)
CF_UNARY(Square)
CF_UNARY(Sqrt)
CF_UNARY(Rsqrt)
CF_UNARY(Reciprocal)
CF_UNARY(Exp)
CF_UNARY(Exp2)
CF_UNARY(Expm1)
CF_UNARY(Log)
CF_UNARY(Log2)
CF_UNARY(Log1p)
CF_UNARY(Sin)
CF_UNARY(Cos)
CF_UNARY(Tan)
CF_UNARY(Asin)
CF_UNARY(Acos)
CF_UNARY(Atan)
CF_UNARY(Asinh)
CF_UNARY(Acosh)
CF_UNARY(Atanh)
CF_UNARY(Tanh)
CF_UNARY(Erf)
CF_UNARY(Erfc)
CF_UNARY(NormalCdf)
CF_UNARY(Sigmoid)
CF_UNARY(Softplus)
CF_UNARY(Relu)
CF_UNARY(Gelu)
CF_UNARY(GeluTanh)
CF_UNARY(Silu)
CF_UNARY(QuickGelu)
CF_UNARY(Mish)
CF_UNARY(Hardsigmoid)
CF_UNARY(Hardswish)
CF_UNARY(FastTanh)
CF_UNARY(SigmoidOfDouble)
CF_UNARY(SiluOfDouble)
CF_UNARY(QuickGeluOfDouble)
CF_UNARY(HalfGeluOfQuadruple)
CF_UNARY(GeluTanhOfDouble)
CF_UNARY(LogicalNot)
CF_UNARY(Isnan)
CF_UNARY(Isinf)
CF_UNARY(Isfinite)

CF_BINARY(Add)
CF_BINARY(Sub)
CF_BINARY(Mul)
CF_BINARY(Div)
CF_BINARY(Fmin)
CF_BINARY(Fmax)
CF_BINARY(Hypot)
CF_BINARY(Fmod)
CF_BINARY(Remainder)
CF_BINARY(Minimum)
CF_BINARY(Maximum)
CF_BINARY(Pow)
CF_BINARY(LeakyRelu)
CF_BINARY(Elu)
CF_BINARY(GeluBackward)
CF_BINARY(GeluTanhBackward)
CF_BINARY(SiluBackward)
CF_BINARY(MishBackward)
CF_BINARY(HardswishBackward)
CF_BINARY(SoftplusBackward)
CF_BINARY(GeluBackwardOfDouble)
CF_BINARY(GeluTanhBackwardOfDouble)
CF_BINARY(SiluBackwardOfDouble)
CF_BINARY(SigmoidBackward)
CF_BINARY(TanhBackward)
CF_BINARY(Eq)
CF_BINARY(Ne)
CF_BINARY(Lt)
CF_BINARY(Le)
CF_BINARY(Gt)
CF_BINARY(Ge)
CF_BINARY(LogicalAnd)
CF_BINARY(LogicalOr)
CF_BINARY(LogicalXor)

CF_TERNARY(Where)
CF_TERNARY(GeluBackwardOfCdf)

#undef CF_UNARY
#undef CF_BINARY
#undef CF_TERNARY

}  // namespace comfuse

#endif
