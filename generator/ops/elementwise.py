"""The elementwise ops: float in, float out.

``evaluate`` is the meaning, in float64, of one element.  It follows IEEE 754 (:mod:`.ieee`).  Comparisons
and logical ops give 1.0 or 0.0; any value but zero, NaN included, is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from comfuse.generator.ops import activations as act
from comfuse.generator.ops import ieee
from comfuse.generator.ops.names import camel_case

PROPAGATES = "propagates"  # NaN in any input gives NaN


@dataclass(frozen=True)
class Elementwise:
    """One elementwise op.

    ``cost`` counts issue slots an element on sm_90, conversions included.  ``nan`` says what becomes of a
    NaN.  ``precision`` says how far the device functor may be from the correctly rounded float32.
    """

    name: str
    arity: int
    evaluate: Callable[..., float]
    cost: float
    nan: str = PROPAGATES
    precision: str = "a few ulp"
    infix: str | None = None  # how to write it in readable math; None: name(arguments)
    commutative: bool = False

    @property
    def functor(self) -> str:
        """Name of the C++ functor: ``gelu_tanh`` -> ``GeluTanh``."""
        return camel_case(self.name)


def _sign(x: float) -> float:
    return float(x > 0.0) - float(x < 0.0)


_EXACT = "exact"
_EX2 = "relative 2^-22; a subnormal result becomes 0"
_FALSE = "0: NaN compares false with everything"
_TRUE = "NaN counts as true"
_OTHER = "gives the other input"
_TEST = "answers 1 or 0"

_ARITHMETIC = (
    Elementwise("add", 2, lambda a, b: a + b, 1, precision=_EXACT, infix="+", commutative=True),
    Elementwise("sub", 2, lambda a, b: a - b, 1, precision=_EXACT, infix="-"),
    Elementwise("mul", 2, lambda a, b: a * b, 1, precision=_EXACT, infix="*", commutative=True),
    Elementwise("div", 2, ieee.div, 10, infix="/"),
    Elementwise("fmod", 2, ieee.fmod, 30, precision=_EXACT),
    Elementwise("remainder", 2, ieee.remainder, 34, precision=_EXACT),
    Elementwise("neg", 1, lambda x: -x, 1, precision=_EXACT),
    Elementwise("abs", 1, abs, 1, precision=_EXACT),
    Elementwise("sign", 1, _sign, 4, nan="0", precision=_EXACT),
    Elementwise("minimum", 2, ieee.minimum, 1, precision=_EXACT, commutative=True),
    Elementwise("maximum", 2, ieee.maximum, 1, precision=_EXACT, commutative=True),
    Elementwise("fmin", 2, ieee.fmin, 1, nan=_OTHER, precision=_EXACT, commutative=True),
    Elementwise("fmax", 2, ieee.fmax, 1, nan=_OTHER, precision=_EXACT, commutative=True),
    Elementwise("floor", 1, ieee.floor, 2, precision=_EXACT),
    Elementwise("ceil", 1, ieee.ceil, 2, precision=_EXACT),
    Elementwise("round", 1, ieee.nearest, 2, precision=_EXACT),  # half to even
    Elementwise("trunc", 1, ieee.trunc, 2, precision=_EXACT),
    Elementwise("square", 1, lambda x: x * x, 1, precision=_EXACT),
    Elementwise("sqrt", 1, ieee.sqrt, 4, precision="1 ulp"),
    Elementwise("rsqrt", 1, lambda x: ieee.div(1.0, ieee.sqrt(x)), 4, precision="relative 2^-22"),
    Elementwise("reciprocal", 1, lambda x: ieee.div(1.0, x), 8),
    Elementwise(
        "hypot", 2, math.hypot, 30, nan="propagates, but for an infinity beside it", commutative=True
    ),
    Elementwise("pow", 2, ieee.power, 50, nan="propagates, but for pow(x, 0) and pow(1, y), which are 1"),
)

_TRANSCENDENTAL = (
    # Rounding x log2(e) costs 2^-24 |x log2(e)| on top of exp2.
    Elementwise("exp", 1, ieee.exp, 3, precision=f"{_EX2}, and 2^-24 |x|"),
    Elementwise("exp2", 1, ieee.exp2, 2, precision=_EX2),
    Elementwise("expm1", 1, ieee.expm1, 18),
    Elementwise("log", 1, ieee.log, 14),
    Elementwise("log2", 1, ieee.log2, 14),
    Elementwise("log1p", 1, ieee.log1p, 18),
    Elementwise("sin", 1, ieee.sin, 22),
    Elementwise("cos", 1, ieee.cos, 22),
    Elementwise("tan", 1, ieee.tan, 30),
    Elementwise("asin", 1, ieee.asin, 18),
    Elementwise("acos", 1, ieee.acos, 18),
    Elementwise("atan", 1, math.atan, 14),
    Elementwise("tanh", 1, math.tanh, 20),
    Elementwise("asinh", 1, math.asinh, 30),
    Elementwise("acosh", 1, ieee.acosh, 30),
    Elementwise("atanh", 1, ieee.atanh, 26),
    Elementwise("erf", 1, math.erf, 22),
    Elementwise("erfc", 1, math.erfc, 30),
)

_SIGMOID = "relative 2^-21, and 2^-24 |x| where x < 0; 0 where the sigmoid is below 2^-126"
_GELU = "relative 6e-6 for |x| < 5, absolute 1e-9 beyond"

_ACTIVATIONS = (
    Elementwise("sigmoid", 1, act.sigmoid, 6, precision=_SIGMOID),
    Elementwise("normal_cdf", 1, act.normal_cdf, 13, precision=_GELU),
    Elementwise("softplus", 1, act.softplus, 24),
    Elementwise("relu", 1, act.relu, 1, precision=_EXACT),
    Elementwise(
        "leaky_relu",
        2,
        act.leaky_relu,
        3,
        nan="propagates from x; slope matters only where x <= 0",
        precision=_EXACT,
    ),
    Elementwise("elu", 2, act.elu, 20, nan="propagates from x; alpha matters only where x <= 0"),
    Elementwise("gelu", 1, act.gelu, 14, precision=_GELU),
    Elementwise("gelu_tanh", 1, act.gelu_tanh, 10, precision=_SIGMOID),
    Elementwise("silu", 1, act.silu, 7, precision=_SIGMOID),
    Elementwise("quick_gelu", 1, act.quick_gelu, 7, precision=_SIGMOID),
    Elementwise("mish", 1, act.mish, 14, precision="relative 2^-20"),
    Elementwise("hardsigmoid", 1, act.hardsigmoid, 4),
    Elementwise("hardswish", 1, act.hardswish, 5),
)

# One tanh.approx each, of a part of the argument, for results that are rounded to bfloat16.  On an H200 that
# is off by at most 8e-6, and by at most 2e-4 of 1 - tanh(x) for x < 4, 1e-2 for x < 5.5; from 8 on it is 1.
_FAST = (
    Elementwise("fast_tanh", 1, math.tanh, 2, precision="absolute 8e-6; relative 5e-4"),
    Elementwise(
        "sigmoid_of_double", 1, lambda h: act.sigmoid(2.0 * h), 3,
        precision="absolute 5e-6; relative 3e-4 where h > -4",
    ),
    Elementwise(
        "silu_of_double", 1, lambda h: act.silu(2.0 * h), 3,
        precision="absolute 9e-6 |h|; relative 3e-4 where h > -4",
    ),
    Elementwise(
        "quick_gelu_of_double", 1, lambda h: act.quick_gelu(2.0 * h), 4,
        precision="absolute 9e-6 |h|; relative 3e-4 where h > -2.3",
    ),
    Elementwise(
        "half_gelu_of_quadruple", 1, lambda a: 0.5 * act.gelu(4.0 * a), 7,
        precision="absolute 2.1e-5; relative 3e-4 where a > -0.4",
    ),
    Elementwise(
        "gelu_tanh_of_double", 1, lambda h: act.gelu_tanh(2.0 * h), 6,
        precision="absolute 9e-6 |h|; relative 3e-4 where h > -1.6",
    ),
    Elementwise(
        "gelu_backward_of_double", 2, lambda grad, h: act.gelu_backward(grad, 2.0 * h), 11,
        precision="absolute 1.3e-4 |grad|",
    ),
    Elementwise(
        "gelu_tanh_backward_of_double", 2, lambda grad, h: act.gelu_tanh_backward(grad, 2.0 * h), 11,
        precision="absolute 2e-5 |grad|",
    ),
    Elementwise(
        "silu_backward_of_double", 2, lambda grad, h: act.silu_backward(grad, 2.0 * h), 7,
        precision="absolute 2e-5 |grad|",
    ),
    # No tanh: what GELU has computed already.
    Elementwise(
        "gelu_backward_of_cdf", 3, act.gelu_backward_of_cdf, 7, precision="absolute 9e-5 |grad|",
    ),
)  # fmt: skip

# The gradient comes first, as in aten.  sigmoid_backward and tanh_backward read the function's output.
_BACKWARD = (
    # Of the functor that was measured; today's has ten slots less.
    Elementwise("gelu_backward", 2, act.gelu_backward, 24, precision="3e-6 |grad|"),
    Elementwise("gelu_tanh_backward", 2, act.gelu_tanh_backward, 18, precision="1e-5 |grad|"),
    Elementwise("silu_backward", 2, act.silu_backward, 10, precision="1e-6 |grad|"),
    Elementwise("mish_backward", 2, act.mish_backward, 22, precision="1e-5 |grad|"),
    Elementwise("hardswish_backward", 2, act.hardswish_backward, 6, nan="a NaN x counts as x >= 3"),
    Elementwise("softplus_backward", 2, act.softplus_backward, 7, precision=_SIGMOID),
    Elementwise("sigmoid_backward", 2, act.sigmoid_backward, 3),
    Elementwise("tanh_backward", 2, act.tanh_backward, 2, precision="2^-23 |grad|"),
)


def _compare(name: str, function: Callable[[float, float], bool], infix: str, *, nan: str) -> Elementwise:
    return Elementwise(
        name,
        2,
        lambda a, b: float(function(a, b)),
        2,
        nan=nan,
        precision=_EXACT,
        infix=infix,
        commutative=name in ("eq", "ne"),
    )


_CHOICE = (
    Elementwise("where", 3, lambda c, a, b: a if c != 0.0 else b, 2, nan=_TRUE, precision=_EXACT),
    _compare("eq", lambda a, b: a == b, "==", nan=_FALSE),
    _compare("ne", lambda a, b: a != b, "!=", nan="1: NaN differs from everything"),
    _compare("lt", lambda a, b: a < b, "<", nan=_FALSE),
    _compare("le", lambda a, b: a <= b, "<=", nan=_FALSE),
    _compare("gt", lambda a, b: a > b, ">", nan=_FALSE),
    _compare("ge", lambda a, b: a >= b, ">=", nan=_FALSE),
    Elementwise(
        "logical_and", 2, lambda a, b: float(a != 0.0 and b != 0.0), 3, _TRUE, _EXACT, commutative=True
    ),
    Elementwise(
        "logical_or", 2, lambda a, b: float(a != 0.0 or b != 0.0), 3, _TRUE, _EXACT, commutative=True
    ),
    Elementwise(
        "logical_xor", 2, lambda a, b: float((a != 0.0) != (b != 0.0)), 3, _TRUE, _EXACT, commutative=True
    ),
    Elementwise("logical_not", 1, lambda x: float(x == 0.0), 2, _TRUE, _EXACT),
    Elementwise("isnan", 1, lambda x: float(math.isnan(x)), 2, _TEST, _EXACT),
    Elementwise("isinf", 1, lambda x: float(math.isinf(x)), 2, _TEST, _EXACT),
    Elementwise("isfinite", 1, lambda x: float(math.isfinite(x)), 2, _TEST, _EXACT),
)

#: Ops that no program is written with: a plan takes them in place of others.
FAST: frozenset[str] = frozenset(op.name for op in _FAST)

ELEMENTWISE: dict[str, Elementwise] = {
    op.name: op for op in (*_ARITHMETIC, *_TRANSCENDENTAL, *_ACTIVATIONS, *_FAST, *_BACKWARD, *_CHOICE)
}
