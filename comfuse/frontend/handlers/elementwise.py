"""Arithmetic, comparisons, logic, choice and rounding.

A handler gets the lowering, the node, and the frame that the node's inputs broadcast to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from comfuse.frontend.placing import Frame, Value
from comfuse.frontend.views import arguments, dtype_of, refuse, shape_of

if TYPE_CHECKING:
    from comfuse.frontend.lowering import Lowering

aten = torch.ops.aten
prims = torch.ops.prims

Handler = Callable[["Lowering", torch.fx.Node, Frame], Value]

# Operators that are one op, with the same inputs in the same order.
_SAME = {
    "abs": (aten.abs.default,),
    "acos": (aten.acos.default,),
    "acosh": (aten.acosh.default,),
    "asin": (aten.asin.default,),
    "asinh": (aten.asinh.default,),
    "atan": (aten.atan.default,),
    "atanh": (aten.atanh.default,),
    "ceil": (aten.ceil.default,),
    "cos": (aten.cos.default,),
    "div": (aten.div.Scalar, aten.div.Tensor),
    "eq": (aten.eq.Scalar, aten.eq.Tensor),
    "erf": (aten.erf.default,),
    "erfc": (aten.erfc.default,),
    "exp": (aten.exp.default,),
    "exp2": (aten.exp2.default,),
    "expm1": (aten.expm1.default,),
    "floor": (aten.floor.default,),
    "fmax": (aten.fmax.default,),
    "fmin": (aten.fmin.default,),
    "fmod": (aten.fmod.Scalar, aten.fmod.Tensor),
    "ge": (aten.ge.Scalar, aten.ge.Tensor),
    "gt": (aten.gt.Scalar, aten.gt.Tensor),
    "hypot": (aten.hypot.default,),
    "isinf": (aten.isinf.default,),
    "isnan": (aten.isnan.default,),
    "le": (aten.le.Scalar, aten.le.Tensor),
    "log": (aten.log.default,),
    "log1p": (aten.log1p.default,),
    "log2": (aten.log2.default,),
    "logical_and": (aten.logical_and.default,),
    "logical_not": (aten.logical_not.default,),
    "logical_or": (aten.logical_or.default,),
    "logical_xor": (aten.logical_xor.default,),
    "lt": (aten.lt.Scalar, aten.lt.Tensor),
    "maximum": (aten.maximum.default, aten.clamp_min.default, aten.clamp_min.Tensor),
    "minimum": (aten.minimum.default, aten.clamp_max.default, aten.clamp_max.Tensor),
    "ne": (aten.ne.Scalar, aten.ne.Tensor),
    "neg": (aten.neg.default,),
    "reciprocal": (aten.reciprocal.default,),
    "remainder": (aten.remainder.Scalar, aten.remainder.Tensor, aten.remainder.Scalar_Tensor),
    "round": (aten.round.default,),
    "rsqrt": (aten.rsqrt.default,),
    "sign": (aten.sign.default,),
    "sin": (aten.sin.default,),
    "sqrt": (aten.sqrt.default,),
    "square": (aten.square.default,),
    "tan": (aten.tan.default,),
    "tanh": (aten.tanh.default,),
    "trunc": (aten.trunc.default,),
    "where": (aten.where.self,),
}
# On bools these are logic; on integers they are refused.
_BITWISE = {
    aten.bitwise_and.Scalar: "logical_and",
    aten.bitwise_and.Tensor: "logical_and",
    aten.bitwise_not.default: "logical_not",
    aten.bitwise_or.Scalar: "logical_or",
    aten.bitwise_or.Tensor: "logical_or",
    aten.bitwise_xor.Scalar: "logical_xor",
    aten.bitwise_xor.Tensor: "logical_xor",
}


def same(op: str) -> Handler:
    """The handler of an operator that is ``op``, with the same tensors and numbers."""

    def handler(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
        return low.emit(op, *(low.value(x, frame, node) for x in arguments(node).values()))

    return handler


def _bitwise(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    if dtype_of(node) is not torch.bool:
        raise refuse(node, f"a bitwise operator on {dtype_of(node)}; only bool is taken")
    return low.emit(_BITWISE[node.target], *(low.value(x, frame, node) for x in arguments(node).values()))


def _scaled(low: Lowering, x: Value, alpha: Any, frame: Frame, node: torch.fx.Node) -> Value:
    return x if alpha == 1 else low.emit("mul", x, low.value(alpha, frame, node))


def _add(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    x, other = low.value(given["self"], frame, node), low.value(given["other"], frame, node)
    if dtype_of(node) is torch.bool:
        return low.emit("logical_or", x, other)
    return low.emit("add", x, _scaled(low, other, given["alpha"], frame, node))


def _mul(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    op = "logical_and" if dtype_of(node) is torch.bool else "mul"
    return same(op)(low, node, frame)


def _sub(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    other = _scaled(low, low.value(given["other"], frame, node), given["alpha"], frame, node)
    return low.emit("sub", low.value(given["self"], frame, node), other)


def _rsub(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    subtrahend = _scaled(low, low.value(given["self"], frame, node), given["alpha"], frame, node)
    return low.emit("sub", low.value(given["other"], frame, node), subtrahend)


def _scaled_product(op: str) -> Handler:
    """``self + value * tensor1 * tensor2``, or a quotient in place of the product."""

    def handler(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
        given = arguments(node)
        x, y, z = (low.value(given[name], frame, node) for name in ("self", "tensor1", "tensor2"))
        return low.emit("add", x, _scaled(low, low.emit(op, y, z), given["value"], frame, node))

    return handler


def multiply_add(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    """``a * b + c``."""
    a, b, c = (low.value(x, frame, node) for x in arguments(node).values())
    return low.emit("add", low.emit("mul", a, b), c)


def _div_mode(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    x, y = low.value(given["self"], frame, node), low.value(given["other"], frame, node)
    mode = given.get("rounding_mode", "floor")
    if mode is not None and not dtype_of(node).is_floating_point:
        # Half a place further, so that no rounding of the quotient of integers crosses one.
        away = low.emit("sign", y if mode == "floor" else x)
        x = low.emit("add", x, low.emit("mul", away, low.const(0.5)))
    quotient = low.emit("div", x, y)
    return quotient if mode is None else low.emit({"floor": "floor", "trunc": "trunc"}[mode], quotient)


_POWERS = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 2.0: "square"}


def _pow(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    x, exponent = low.value(given["self"], frame, node), given["exponent"]
    if exponent in _POWERS:
        return low.emit(_POWERS[exponent], x)
    if exponent == 1:
        return x
    if exponent == 3:
        return low.emit("mul", low.emit("square", x), x)
    if exponent == 4:
        return low.emit("square", low.emit("square", x))
    return low.emit("pow", x, low.value(exponent, frame, node))


def _clamp(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    lowest = given.get("min", given.get("min_val"))
    highest = given.get("max", given.get("max_val"))
    x = low.value(given["self"], frame, node)
    if lowest is not None:
        x = low.emit("maximum", x, low.value(lowest, frame, node))
    if highest is not None:
        x = low.emit("minimum", x, low.value(highest, frame, node))
    return x


def _round(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    scale = low.const(10.0 ** given["decimals"])
    scaled = low.emit("mul", low.value(given["self"], frame, node), scale)
    return low.emit("div", low.emit("round", scaled), scale)


def _log10(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    logarithm = low.emit("log", low.value(node.args[0], frame, node))
    return low.emit("mul", logarithm, low.const(1.0 / math.log(10.0)))


def _mean_with_negative(op: str, join: str) -> Handler:
    """``(f(x) + f(-x)) / 2`` and ``(f(x) - f(-x)) / 2``."""

    def handler(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
        x = low.value(node.args[0], frame, node)
        both = low.emit(join, low.emit(op, x), low.emit(op, low.emit("neg", x)))
        return low.emit("mul", both, low.const(0.5))

    return handler


def _masked_fill(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    return low.emit("where", *(low.value(given[name], frame, node) for name in ("mask", "value", "self")))


def _is_infinite(sign: float) -> Handler:
    def handler(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
        return low.emit("eq", low.value(node.args[0], frame, node), low.const(sign * math.inf))

    return handler


def _copy(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    return low.value(arguments(node)["src"], frame, node)


def _triangle(comparison: str) -> Handler:
    """Zero on one side of a diagonal of the last two dimensions."""

    def handler(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
        given = arguments(node)
        rank = len(shape_of(node))
        row, column = (low.position(frame, d, node) for d in (rank - 2, rank - 1))
        kept = low.emit(comparison, low.emit("sub", column, row), low.const(given["diagonal"]))
        return low.emit("where", kept, low.value(given["self"], frame, node), low.const(0.0))

    return handler


ELEMENTWISE: dict[Any, Handler] = {
    **{target: same(op) for op, targets in _SAME.items() for target in targets},
    **dict.fromkeys(_BITWISE, _bitwise),
    aten.add.Scalar: _add,
    aten.add.Tensor: _add,
    aten.addcdiv.default: _scaled_product("div"),
    aten.addcmul.default: _scaled_product("mul"),
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.copy.default: _copy,
    aten.cosh.default: _mean_with_negative("exp", "add"),
    aten.div.Scalar_mode: _div_mode,
    aten.div.Tensor_mode: _div_mode,
    aten.floor_divide.default: _div_mode,
    aten.hardtanh.default: _clamp,
    aten.isneginf.default: _is_infinite(-1.0),
    aten.isposinf.default: _is_infinite(1.0),
    aten.log10.default: _log10,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.mul.Scalar: _mul,
    aten.mul.Tensor: _mul,
    aten.pow.Scalar: same("pow"),
    aten.pow.Tensor_Scalar: _pow,
    aten.pow.Tensor_Tensor: same("pow"),
    aten.round.decimals: _round,
    aten.rsub.Scalar: _rsub,
    aten.rsub.Tensor: _rsub,
    aten.sinh.default: _mean_with_negative("expm1", "sub"),
    aten.sub.Scalar: _sub,
    aten.sub.Tensor: _sub,
    aten.tril.default: _triangle("le"),
    aten.triu.default: _triangle("ge"),
}


# --- tensors that depend on nothing ---------------------------------------------------------------------


def _number(position: int) -> Callable[[torch.fx.Node], float]:
    def fill(node: torch.fx.Node) -> float:
        value = node.args[position]
        if not isinstance(value, bool | int | float):
            raise refuse(node, f"it is filled with {value}, which is no number known when it is traced")
        return float(value)

    return fill


def _all(value: float) -> Callable[[torch.fx.Node], float]:
    return lambda node: value


# Filled with one number; their shape does not matter, since a scalar broadcasts to any.
FILLS: dict[Any, Callable[[torch.fx.Node], float]] = {
    aten.empty.memory_format: _all(0.0),
    aten.empty_like.default: _all(0.0),
    aten.fill.Scalar: _number(1),
    aten.full.default: _number(1),
    aten.full_like.default: _number(1),
    aten.new_empty.default: _all(0.0),
    aten.new_full.default: _number(2),
    aten.new_ones.default: _all(1.0),
    aten.new_zeros.default: _all(0.0),
    aten.ones.default: _all(1.0),
    aten.ones_like.default: _all(1.0),
    aten.scalar_tensor.default: _number(0),
    aten.zeros.default: _all(0.0),
    aten.zeros_like.default: _all(0.0),
}


def _arange(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    index = low.position(frame, 0, node)
    start, step = given.get("start", 0), given.get("step", 1)
    if step != 1:
        index = low.emit("mul", index, low.const(step))
    return index if start == 0 else low.emit("add", index, low.const(start))


def _eye(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    return low.emit("eq", low.position(frame, 0, node), low.position(frame, 1, node))


# Made of the position of an element.
POSITIONS: dict[Any, Handler] = {
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
    prims.iota.default: _arange,
}
