"""The op table: one row for each elementwise op and one for each row reduction.

A row says everything that the generator knows of an op.  To add one: a row here, a functor of the
same name in ``csrc/include/comfuse/functors.hpp``, a torch function in ``comfuse/reference.py``.

``evaluate`` is the meaning, in float64, of one element.  It follows IEEE 754 where Python raises:
``1 / 0`` is infinite, ``log(-1)`` is NaN.  NaN propagates through ``minimum``, ``maximum`` and ``relu``,
as in torch.  Comparisons and logical ops give 1.0 or 0.0; any value but zero, NaN included, is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

INF = math.inf
NAN = math.nan


@dataclass(frozen=True)
class Elementwise:
    """One elementwise op.  ``cost`` counts issue slots an element on sm_90, conversions included."""

    name: str
    arity: int
    evaluate: Callable[..., float]
    cost: float
    infix: str | None = None  # how to write it in readable math; None: name(arguments)
    commutative: bool = False

    @property
    def functor(self) -> str:
        """Name of the C++ functor: ``gelu_tanh`` -> ``GeluTanh``."""
        return camel_case(self.name)


@dataclass(frozen=True)
class Reduction:
    """One row reduction.

    ``evaluate`` maps a row's values to the tuple of ``fields``.  A reduction with the one field
    ``value`` is read directly; the result of any other is read through ``"field"`` nodes only.
    """

    name: str
    monoid: str  # the C++ type
    evaluate: Callable[[Sequence[float]], tuple[float, ...]]
    cost: float  # issue slots an element
    fields: dict[str, str] = field(
        default_factory=lambda: {"value": "value"}, hash=False
    )  # field -> C++ name
    state_floats: int = 1  # what a row's partial result occupies

    @property
    def is_plain(self) -> bool:
        """True if the result is one value, read without a ``"field"`` node."""
        return "value" in self.fields


def camel_case(name: str) -> str:
    """``leaky_relu`` -> ``LeakyRelu``."""
    return "".join(part.capitalize() for part in name.split("_"))


# --- float64 semantics where Python's own differ from IEEE 754 ------------------------------------------


def _div(a: float, b: float) -> float:
    if b != 0.0:
        return a / b
    return NAN if a == 0.0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1.0, b)


def _is_odd(x: float) -> bool:
    return math.isfinite(x) and math.fmod(x, 2.0) in (1.0, -1.0)


def _pow(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -INF if a < 0.0 and _is_odd(b) else INF
    except ValueError:  # 0 to a negative power, or a negative number to a fraction
        if a == 0.0:
            return math.copysign(INF, a) if _is_odd(b) else INF
        return NAN


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0.0 else NAN


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return INF


def _exp2(x: float) -> float:
    try:
        return math.pow(2.0, x)
    except OverflowError:
        return INF


def _expm1(x: float) -> float:
    try:
        return math.expm1(x)
    except OverflowError:
        return INF


def _log(x: float, log: Callable[[float], float] = math.log) -> float:
    if x > 0.0:
        return log(x)
    return -INF if x == 0.0 else NAN


def _log2(x: float) -> float:
    return _log(x, math.log2)


def _log1p(x: float) -> float:
    if x > -1.0:
        return math.log1p(x)
    return -INF if x == -1.0 else NAN


def _sin(x: float) -> float:
    return math.sin(x) if math.isfinite(x) else NAN


def _cos(x: float) -> float:
    return math.cos(x) if math.isfinite(x) else NAN


def _minimum(a: float, b: float) -> float:
    return a if math.isnan(a) or a < b else b


def _maximum(a: float, b: float) -> float:
    return a if math.isnan(a) or a > b else b


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + _exp(-x))


def _gelu(x: float) -> float:
    return x * 0.5 * math.erfc(-x * math.sqrt(0.5))


def _gelu_tanh(x: float) -> float:
    # x * 0.5 * (1 + tanh(u)) = x * sigmoid(2 u), which does not cancel for negative u.
    return x * _sigmoid(2.0 * math.sqrt(2.0 / math.pi) * x * (1.0 + 0.044715 * x * x))


def _softplus(x: float) -> float:
    return _maximum(x, 0.0) + math.log1p(_exp(-abs(x)))


def _sign(x: float) -> float:
    return float(x > 0.0) - float(x < 0.0)


# --- the table ------------------------------------------------------------------------------------------

_ELEMENTWISE = (
    Elementwise("add", 2, lambda a, b: a + b, 1, infix="+", commutative=True),
    Elementwise("sub", 2, lambda a, b: a - b, 1, infix="-"),
    Elementwise("mul", 2, lambda a, b: a * b, 1, infix="*", commutative=True),
    Elementwise("div", 2, _div, 10, infix="/"),
    Elementwise("neg", 1, lambda x: -x, 1),
    Elementwise("abs", 1, abs, 1),
    Elementwise("minimum", 2, _minimum, 1, commutative=True),
    Elementwise("maximum", 2, _maximum, 1, commutative=True),
    Elementwise("square", 1, lambda x: x * x, 1),
    Elementwise("sqrt", 1, _sqrt, 4),
    Elementwise("rsqrt", 1, lambda x: _div(1.0, _sqrt(x)), 4),
    Elementwise("reciprocal", 1, lambda x: _div(1.0, x), 8),
    Elementwise("exp", 1, _exp, 3),
    Elementwise("exp2", 1, _exp2, 2),
    Elementwise("log", 1, _log, 14),
    Elementwise("log2", 1, _log2, 14),
    Elementwise("log1p", 1, _log1p, 18),
    Elementwise("expm1", 1, _expm1, 18),
    Elementwise("tanh", 1, math.tanh, 20),
    Elementwise("sigmoid", 1, _sigmoid, 6),
    Elementwise("erf", 1, math.erf, 22),
    Elementwise("sin", 1, _sin, 22),
    Elementwise("cos", 1, _cos, 22),
    Elementwise("pow", 2, _pow, 50),
    Elementwise("relu", 1, lambda x: _maximum(x, 0.0), 1),
    Elementwise("leaky_relu", 2, lambda x, slope: x if x > 0.0 else x * slope, 3),
    Elementwise("silu", 1, lambda x: x * _sigmoid(x), 7),
    Elementwise("gelu", 1, _gelu, 14),
    Elementwise("gelu_tanh", 1, _gelu_tanh, 10),
    Elementwise("softplus", 1, _softplus, 24),
    Elementwise("sign", 1, _sign, 4),
    Elementwise("where", 3, lambda c, a, b: a if c != 0.0 else b, 2),
    Elementwise("eq", 2, lambda a, b: float(a == b), 2, infix="==", commutative=True),
    Elementwise("ne", 2, lambda a, b: float(a != b), 2, infix="!=", commutative=True),
    Elementwise("lt", 2, lambda a, b: float(a < b), 2, infix="<"),
    Elementwise("le", 2, lambda a, b: float(a <= b), 2, infix="<="),
    Elementwise("gt", 2, lambda a, b: float(a > b), 2, infix=">"),
    Elementwise("ge", 2, lambda a, b: float(a >= b), 2, infix=">="),
    Elementwise("logical_and", 2, lambda a, b: float(a != 0.0 and b != 0.0), 3, commutative=True),
    Elementwise("logical_or", 2, lambda a, b: float(a != 0.0 or b != 0.0), 3, commutative=True),
    Elementwise("logical_not", 1, lambda x: float(x == 0.0), 2),
)


def _row_max(row: Sequence[float]) -> tuple[float]:
    result = -INF
    for x in row:
        result = _maximum(result, x)
    return (result,)


def _row_min(row: Sequence[float]) -> tuple[float]:
    result = INF
    for x in row:
        result = _minimum(result, x)
    return (result,)


def _row_welford(row: Sequence[float]) -> tuple[float, float]:
    mean = sum(row) / len(row)
    return mean, sum((x - mean) * (x - mean) for x in row) / len(row)


_REDUCTIONS = (
    Reduction("row_sum", "Sum", lambda row: (sum(row),), 1),
    Reduction("row_max", "Max", _row_max, 1),
    Reduction("row_min", "Min", _row_min, 1),
    Reduction("row_sumsq", "SumSq", lambda row: (sum(x * x for x in row),), 1),
    # Mean and biased variance.  On the device: two passes over a tile's row, merged by Chan's formula.
    Reduction("row_welford", "Welford", _row_welford, 3, {"mean": "mean", "var": "variance"}, 2),
)

ELEMENTWISE: dict[str, Elementwise] = {op.name: op for op in _ELEMENTWISE}
REDUCTIONS: dict[str, Reduction] = {op.name: op for op in _REDUCTIONS}
STRUCTURAL: tuple[str, ...] = ("gemm", "load", "const", "field")
