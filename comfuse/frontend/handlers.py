"""The table: aten operator -> how it is written in the ops of the generator.

An elementwise handler gets the lowering, the node and the frame that the node's inputs broadcast to; a
reduction handler finds its input itself.  To teach the front end an operator that is one op of the
generator, add a row to ``_SAME``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from comfuse.frontend.placing import Frame, Value
from comfuse.frontend.views import arguments, dtype_of, name_of, refuse, shape_of

if TYPE_CHECKING:
    from comfuse.frontend.lower import Lowering

aten = torch.ops.aten

ElementwiseHandler = Callable[["Lowering", torch.fx.Node, Frame], Value]
ReductionHandler = Callable[["Lowering", torch.fx.Node], "Value | tuple[Value | None, ...]"]

# Operators that are one op, with the same inputs in the same order.
_SAME = {
    aten.abs.default: "abs",
    aten.bitwise_and.Tensor: "logical_and",
    aten.bitwise_not.default: "logical_not",
    aten.bitwise_or.Tensor: "logical_or",
    aten.clamp_max.default: "minimum",
    aten.clamp_max.Tensor: "minimum",
    aten.clamp_min.default: "maximum",
    aten.clamp_min.Tensor: "maximum",
    aten.cos.default: "cos",
    aten.div.Scalar: "div",
    aten.div.Tensor: "div",
    aten.eq.Scalar: "eq",
    aten.eq.Tensor: "eq",
    aten.erf.default: "erf",
    aten.exp.default: "exp",
    aten.exp2.default: "exp2",
    aten.expm1.default: "expm1",
    aten.ge.Scalar: "ge",
    aten.ge.Tensor: "ge",
    aten.gt.Scalar: "gt",
    aten.gt.Tensor: "gt",
    aten.le.Scalar: "le",
    aten.le.Tensor: "le",
    aten.leaky_relu.default: "leaky_relu",
    aten.log.default: "log",
    aten.log1p.default: "log1p",
    aten.log2.default: "log2",
    aten.logical_and.default: "logical_and",
    aten.logical_not.default: "logical_not",
    aten.logical_or.default: "logical_or",
    aten.lt.Scalar: "lt",
    aten.lt.Tensor: "lt",
    aten.maximum.default: "maximum",
    aten.minimum.default: "minimum",
    aten.mul.Scalar: "mul",
    aten.mul.Tensor: "mul",
    aten.ne.Scalar: "ne",
    aten.ne.Tensor: "ne",
    aten.neg.default: "neg",
    aten._prelu_kernel.default: "leaky_relu",
    aten.pow.Scalar: "pow",
    aten.pow.Tensor_Tensor: "pow",
    aten.reciprocal.default: "reciprocal",
    aten.relu.default: "relu",
    aten.rsqrt.default: "rsqrt",
    aten.sigmoid.default: "sigmoid",
    aten.sign.default: "sign",
    aten.silu.default: "silu",
    aten.sin.default: "sin",
    aten.sqrt.default: "sqrt",
    aten.square.default: "square",
    aten.tanh.default: "tanh",
    aten.where.self: "where",
}


def _same(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    if node.target in _BOOLEAN and any(dtype_of(i) is not torch.bool for i in node.all_input_nodes):
        raise refuse(node, f"a bitwise operator on {dtype_of(node)}; only bool is taken")
    inputs = [low.value(x, frame, node) for x in arguments(node).values()]
    return low.emit(_SAME[node.target], *inputs)


_BOOLEAN = {aten.bitwise_and.Tensor, aten.bitwise_not.default, aten.bitwise_or.Tensor}


def _scaled(low: Lowering, x: Value, alpha: Any, frame: Frame, node: torch.fx.Node) -> Value:
    return x if alpha == 1 else low.emit("mul", x, low.value(alpha, frame, node))


def _add(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    other = _scaled(low, low.value(given["other"], frame, node), given["alpha"], frame, node)
    return low.emit("add", low.value(given["self"], frame, node), other)


def _sub(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    other = _scaled(low, low.value(given["other"], frame, node), given["alpha"], frame, node)
    return low.emit("sub", low.value(given["self"], frame, node), other)


def _rsub(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    subtrahend = _scaled(low, low.value(given["self"], frame, node), given["alpha"], frame, node)
    return low.emit("sub", low.value(given["other"], frame, node), subtrahend)


def _div_mode(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    if given["rounding_mode"] is not None:
        raise refuse(node, f"division rounded by {given['rounding_mode']!r} is not available")
    return low.emit("div", low.value(given["self"], frame, node), low.value(given["other"], frame, node))


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


def _gelu(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    op = "gelu_tanh" if given["approximate"] == "tanh" else "gelu"
    return low.emit(op, low.value(given["self"], frame, node))


def _softplus(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    x, beta = low.value(given["self"], frame, node), given["beta"]
    if given["threshold"] < 20 or beta == 0:
        # From 20 on, softplus(x) and x are the same float32, so that torch's switch changes nothing.
        raise refuse(
            node, f"threshold {given['threshold']}, beta {beta}; allowed: threshold >= 20, beta != 0"
        )
    if beta == 1:
        return low.emit("softplus", x)
    scaled = low.emit("softplus", low.emit("mul", x, low.value(beta, frame, node)))
    return low.emit("div", scaled, low.value(beta, frame, node))


def _masked_fill(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    return low.emit("where", *(low.value(given[name], frame, node) for name in ("mask", "value", "self")))


def _isnan(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    x = low.value(node.args[0], frame, node)
    return low.emit("ne", x, x)


def _isinf(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    return low.emit("eq", low.emit("abs", low.value(node.args[0], frame, node)), low.const(math.inf))


def _isposinf(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    return low.emit("eq", low.value(node.args[0], frame, node), low.const(math.inf))


def _isneginf(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    return low.emit("eq", low.value(node.args[0], frame, node), low.const(-math.inf))


def _copy(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    source = low.value(given["src"], frame, node)
    if source.shape != shape_of(node):
        raise refuse(node, f"it writes a value of shape {source.shape} over one of shape {shape_of(node)}")
    return source


ELEMENTWISE: dict[Any, ElementwiseHandler] = {
    **dict.fromkeys(_SAME, _same),
    aten.add.Scalar: _add,
    aten.add.Tensor: _add,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.copy.default: _copy,
    aten.div.Scalar_mode: _div_mode,
    aten.div.Tensor_mode: _div_mode,
    aten.gelu.default: _gelu,
    aten.hardtanh.default: _clamp,
    aten.isinf.default: _isinf,
    aten.isnan.default: _isnan,
    aten.isneginf.default: _isneginf,
    aten.isposinf.default: _isposinf,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.pow.Tensor_Scalar: _pow,
    aten.rsub.Scalar: _rsub,
    aten.rsub.Tensor: _rsub,
    aten.softplus.default: _softplus,
    aten.sub.Scalar: _sub,
    aten.sub.Tensor: _sub,
}

# Tensors filled with one number; their shape does not matter, since a scalar broadcasts to any.
CONSTANTS: dict[Any, Callable[[torch.fx.Node], float]] = {
    aten.full.default: lambda node: float(node.args[1]),  # type: ignore[arg-type]
    aten.full_like.default: lambda node: float(node.args[1]),  # type: ignore[arg-type]
    aten.new_full.default: lambda node: float(node.args[2]),  # type: ignore[arg-type]
    aten.new_ones.default: lambda node: 1.0,
    aten.new_zeros.default: lambda node: 0.0,
    aten.ones.default: lambda node: 1.0,
    aten.ones_like.default: lambda node: 1.0,
    aten.scalar_tensor.default: lambda node: float(node.args[0]),  # type: ignore[arg-type]
    aten.zeros.default: lambda node: 0.0,
    aten.zeros_like.default: lambda node: 0.0,
}


# --- reductions and the functions made of them ------------------------------------------------------------


def _row(low: Lowering, node: torch.fx.Node, dims: Any) -> Value:
    """The input of a reduction over ``dims``, which must be the columns of the tile and nothing else."""
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    shape = shape_of(source)
    rank = len(shape)
    dims = [dims] if isinstance(dims, int) else list(dims or range(rank))
    reduced = sorted({d % rank for d in dims if shape[d] != 1 or d % rank == rank - 1})
    tile = low.tile(source, node)
    if reduced != [rank - 1]:
        what = "all of its input" if len(reduced) == rank else f"dimensions {reduced} of {shape}"
        raise refuse(
            node,
            f"it reduces {what}; only reductions over the last dimension, the GEMM's N, are taken",
        )
    return tile


def _plain(op: str) -> ReductionHandler:
    def handler(low: Lowering, node: torch.fx.Node) -> Value:
        given = arguments(node)
        return low.reduce(op, _row(low, node, given.get("dim")))

    return handler


def _with_index(op: str) -> ReductionHandler:
    def handler(low: Lowering, node: torch.fx.Node) -> tuple[Value | None, ...]:
        given = arguments(node)
        return low.reduce(op, _row(low, node, given["dim"])), None

    return handler


def _mean(low: Lowering, node: torch.fx.Node) -> Value:
    given = arguments(node)
    total = low.reduce("row_sum", _row(low, node, given.get("dim")))
    return low.emit("mul", total, low.const(1.0 / low.n))


def _variance(low: Lowering, node: torch.fx.Node) -> Value | tuple[Value, Value]:
    """Variance, or variance and mean.  ``correction`` 0 divides by N, 1 (torch's default) by N - 1."""
    given = arguments(node)
    correction = 1 if given["correction"] is None else given["correction"]
    stats = low.reduce("row_welford", _row(low, node, given["dim"]), name="stats")
    variance = low.field(stats, "var")
    if correction != 0:
        if correction >= low.n:
            raise refuse(node, f"correction {correction} leaves no degree of freedom in {low.n} columns")
        variance = low.emit("mul", variance, low.const(low.n / (low.n - correction)))
    return variance if node.target is aten.var.correction else (variance, low.field(stats, "mean"))


def _norm(low: Lowering, node: torch.fx.Node) -> Value:
    given = arguments(node)
    order = float(given["ord"])
    x = _row(low, node, given["dim"])
    if order == 2:
        return low.emit("sqrt", low.reduce("row_sumsq", x))
    reductions = {1.0: "row_sum", math.inf: "row_max", -math.inf: "row_min"}
    if order not in reductions:
        raise refuse(node, f"a norm of order {order}; allowed: 1, 2, inf, -inf")
    return low.reduce(reductions[order], low.emit("abs", x))


def _truth(op: str) -> ReductionHandler:
    def handler(low: Lowering, node: torch.fx.Node) -> Value:
        given = arguments(node)
        x = _row(low, node, given.get("dim"))
        return low.reduce(op, low.emit("ne", x, low.const(0.0)))

    return handler


def _softmax(low: Lowering, node: torch.fx.Node) -> Value:
    given = arguments(node)
    x = _row(low, node, given["dim"])
    peak = low.reduce("row_max", x)
    shifted = low.emit("sub", x, peak)
    powers = low.emit("exp", shifted)
    total = low.reduce("row_sum", powers)
    if node.target is aten._softmax.default:
        return low.emit("div", powers, total)
    return low.emit("sub", shifted, low.emit("log", total))


def _layer_norm(low: Lowering, node: torch.fx.Node) -> tuple[Value, ...]:
    given = arguments(node)
    if list(given["normalized_shape"]) != [low.n]:
        raise refuse(
            node, f"it normalises over {list(given['normalized_shape'])}, not the GEMM's N = {low.n} alone"
        )
    x = _row(low, node, [-1])
    frame = Frame(x.shape, True)
    stats = low.reduce("row_welford", x, name="stats")
    mean = low.field(stats, "mean")
    shifted = low.emit("add", low.field(stats, "var"), low.value(given["eps"], frame, node))
    rstd = low.emit("rsqrt", shifted, name="rstd")
    y = low.emit("mul", low.emit("sub", x, mean), rstd, name="x_hat")
    if given["weight"] is not None:
        y = low.emit("mul", y, low.value(given["weight"], frame, node))
    if given["bias"] is not None:
        y = low.emit("add", y, low.value(given["bias"], frame, node))
    return y, mean, rstd


REDUCTIONS: dict[Any, ReductionHandler] = {
    aten._log_softmax.default: _softmax,
    aten._softmax.default: _softmax,
    aten.all.default: _truth("row_min"),
    aten.all.dim: _truth("row_min"),
    aten.amax.default: _plain("row_max"),
    aten.amin.default: _plain("row_min"),
    aten.any.default: _truth("row_max"),
    aten.any.dim: _truth("row_max"),
    aten.linalg_vector_norm.default: _norm,
    aten.max.default: _plain("row_max"),
    aten.max.dim: _with_index("row_max"),
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.min.default: _plain("row_min"),
    aten.min.dim: _with_index("row_min"),
    aten.native_layer_norm.default: _layer_norm,
    aten.sum.default: _plain("row_sum"),
    aten.sum.dim_IntList: _plain("row_sum"),
    aten.var.correction: _variance,
    aten.var_mean.correction: _variance,
}

_REARRANGING = {
    aten.cat, aten.index, aten.permute, aten.select, aten.slice, aten.split, aten.t, aten.transpose,
}  # fmt: skip
_RANDOM = {aten.native_dropout, aten.bernoulli, aten.rand_like, aten.randn_like}


def explain_unknown(node: torch.fx.Node) -> str:
    """Why an operator that is not in the table is refused."""
    target = node.target
    packet = getattr(target, "overloadpacket", target)
    if packet in _RANDOM:
        return "it draws random numbers: set the dropout probability to 0 or the module to eval()"
    schema = getattr(target, "_schema", None)
    if schema is not None and schema.is_mutable:
        changed = name_of(node.args[0]) if isinstance(node.args[0], torch.fx.Node) else "a tensor"
        return f"it changes {changed} in place: return the new value instead"
    if packet in _REARRANGING:
        return "it rearranges rows or columns of the GEMM's result: do that after the call"
    return "there is no counterpart of this operator in a fused kernel: compute it before or after the call"
