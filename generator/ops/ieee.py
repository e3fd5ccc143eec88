"""Float64 functions that follow IEEE 754 where Python raises: ``1 / 0`` is infinite, ``log(-1)`` is NaN."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

INF = math.inf
NAN = math.nan


def div(a: float, b: float) -> float:
    if b != 0.0:
        return a / b
    return NAN if a == 0.0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1.0, b)


def is_odd(x: float) -> bool:
    return math.isfinite(x) and math.fmod(x, 2.0) in (1.0, -1.0)


def power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -INF if a < 0.0 and is_odd(b) else INF
    except ValueError:  # 0 to a negative power, or a negative number to a fraction
        if a == 0.0:
            return math.copysign(INF, a) if is_odd(b) else INF
        return NAN


def fmod(a: float, b: float) -> float:
    """The sign is that of ``a``."""
    if b == 0.0 or math.isinf(a):
        return NAN
    return math.fmod(a, b)


def remainder(a: float, b: float) -> float:
    """The sign is that of ``b``, as of ``%`` in Python."""
    rest = fmod(a, b)
    return rest + b if rest != 0.0 and (rest < 0.0) != (b < 0.0) else rest


def sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0.0 else NAN


def to_fp16(x: float) -> float:
    """The nearest half-precision number; of two, the even one."""
    return _through("<e", x)


def to_bf16(x: float) -> float:
    """The nearest bfloat16 to the nearest float32; of two, the even one."""
    if math.isnan(x):
        return x
    (bits,) = struct.unpack("<I", struct.pack("<f", _through("<f", x)))
    bits += 0x7FFF + (bits >> 16 & 1)  # an overflow of the fraction goes to the exponent, as it should
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


def _through(format_: str, x: float) -> float:
    try:
        return float(struct.unpack(format_, struct.pack(format_, x))[0])
    except OverflowError:
        return math.copysign(INF, x)


def _unless_too_large(function: Callable[[float], float]) -> Callable[[float], float]:
    def checked(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return INF

    return checked


exp = _unless_too_large(math.exp)
exp2 = _unless_too_large(lambda x: math.pow(2.0, x))
expm1 = _unless_too_large(math.expm1)


def _logarithm(function: Callable[[float], float], zero: float) -> Callable[[float], float]:
    def checked(x: float) -> float:
        if x > zero:
            return function(x)
        return -INF if x == zero else NAN

    return checked


log = _logarithm(math.log, 0.0)
log2 = _logarithm(math.log2, 0.0)
log1p = _logarithm(math.log1p, -1.0)


def _of_finite(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: function(x) if math.isfinite(x) else NAN


sin = _of_finite(math.sin)
cos = _of_finite(math.cos)
tan = _of_finite(math.tan)


def _rounded(function: Callable[[float], int]) -> Callable[[float], float]:
    # Python gives an int, which has neither a negative zero nor an infinity.
    return lambda x: math.copysign(float(function(x)), x) if math.isfinite(x) else x


floor = _rounded(math.floor)
ceil = _rounded(math.ceil)
trunc = _rounded(math.trunc)
nearest = _rounded(round)  # half to even


def asin(x: float) -> float:
    return math.asin(x) if abs(x) <= 1.0 else NAN


def acos(x: float) -> float:
    return math.acos(x) if abs(x) <= 1.0 else NAN


def acosh(x: float) -> float:
    return math.acosh(x) if x >= 1.0 else NAN


def atanh(x: float) -> float:
    if abs(x) == 1.0:
        return math.copysign(INF, x)
    return math.atanh(x) if abs(x) < 1.0 else NAN


def fmin(a: float, b: float) -> float:
    """The smaller one, or the one that is a number."""
    return a if math.isnan(b) or a < b else b


def fmax(a: float, b: float) -> float:
    """The larger one, or the one that is a number."""
    return a if math.isnan(b) or a > b else b


def minimum(a: float, b: float) -> float:
    return a if math.isnan(a) or a < b else b


def maximum(a: float, b: float) -> float:
    return a if math.isnan(a) or a > b else b
