"""Softmax, layer norm and what else is made of reductions and elementwise work."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from comfuse.frontend import axes
from comfuse.frontend.handlers.over import Over, over, over_term
from comfuse.frontend.handlers.reductions import Handler, results
from comfuse.frontend.placing import Frame, Result, Term, Value
from comfuse.frontend.views import arguments, name_of, refuse, shape_of

if TYPE_CHECKING:
    from comfuse.frontend.lowering import Lowering

aten = torch.ops.aten


def _peak_and_total(low: Lowering, found: Over) -> tuple[Value, Value]:
    """The maximum, and the sum of ``exp(x - maximum)``."""
    if found.axis in ("row", "group"):
        stats = found.reduce("softmax", name="softmax_stats")
        return low.field(stats, "max"), low.field(stats, "sumexp")
    peak = found.reduce("max")
    return peak, found.reduce("sum", low.emit("exp", low.emit("sub", found.x, peak)))


def _softmax(low: Lowering, node: torch.fx.Node) -> Result:
    found = over(low, node, node.args[0], arguments(node)["dim"])
    peak, total = _peak_and_total(low, found)
    powers = low.emit("exp", low.emit("sub", found.x, peak))
    return results(found, low.emit("div", powers, total))


def _safe_softmax(low: Lowering, node: torch.fx.Node) -> Result:
    """Softmax, but 0 in a row of nothing but minus infinity."""
    found = over(low, node, node.args[0], arguments(node)["dim"])
    peak, total = _peak_and_total(low, found)
    powers = low.emit("exp", low.emit("sub", found.x, peak))
    masked = low.emit("eq", peak, low.const(-math.inf))
    return results(found, low.emit("where", masked, low.const(0.0), low.emit("div", powers, total)))


def _log_softmax(low: Lowering, node: torch.fx.Node) -> Result:
    found = over(low, node, node.args[0], arguments(node)["dim"])
    peak, total = _peak_and_total(low, found)
    logarithm = low.emit("log", total)
    y = low.emit("sub", low.emit("sub", found.x, peak), logarithm)
    if found.axis == "row":
        low.logarithms[y.node] = (found.x, (peak, logarithm))
    return results(found, y)


def _logsumexp(low: Lowering, node: torch.fx.Node) -> Result:
    found = over(low, node, node.args[0], arguments(node)["dim"])
    if found.axis in ("row", "group"):
        return results(found, low.field(found.reduce("softmax", name="softmax_stats"), "lse"))
    peak = found.reduce("max")
    # An infinite maximum is the result; taking it from x would give NaN.
    infinite = low.emit("isinf", peak)
    shift = low.emit("where", infinite, low.const(0.0), peak)
    total = found.reduce("sum", low.emit("exp", low.emit("sub", found.x, shift)))
    return results(found, low.emit("add", low.emit("log", total), shift))


def _layer_norm(low: Lowering, node: torch.fx.Node) -> Result:
    given = arguments(node)
    rank, count = len(shape_of(given["input"])), len(given["normalized_shape"])
    found = over(low, node, given["input"], list(range(rank - count, rank)))
    if found.axis not in ("row", "group"):
        raise refuse(
            node,
            f"it normalises over {list(given['normalized_shape'])}, not over N = {low.n} or groups of it",
        )
    mean, rstd = _moments(low, node, found, given["eps"])
    y = low.emit("mul", low.emit("sub", found.x, mean), rstd, name="x_hat")
    return results(found, _scaled(low, node, y, found.frame), mean, rstd)


def _group_norm(low: Lowering, node: torch.fx.Node) -> Result:
    """Normalises groups of channels, the GEMM's columns, which are dimension 1 of the input."""
    given = arguments(node)
    term = low.term(given["input"], node)
    batch, groups = given["N"], given["group"]
    by_group = axes.reshaped(term.layout, (batch, groups, given["C"] // groups * given["HxW"]))
    if by_group is None or term.is_wide:
        raise refuse(node, "its groups are no runs of columns of the GEMM's result")
    found = over_term(low, node, Term(term.values, by_group), [2], name_of(given["input"]))
    mean, rstd = _moments(low, node, found, given["eps"])
    y = low.emit("mul", low.emit("sub", found.x, mean), rstd, name="x_hat")
    y = _scaled(low, node, y, Frame.of(term.layout[1:2]))
    statistics = (found.term(v, node.meta["val"][1].shape) for v in (mean, rstd))
    return (Term((y,), term.layout), *statistics)


def _moments(low: Lowering, node: torch.fx.Node, found: Over, eps: float) -> tuple[Value, Value]:
    """Mean, and the reciprocal of the standard deviation."""
    stats = found.reduce("welford", name="stats")
    mean = low.field(stats, "mean")
    shifted = low.emit("add", low.field(stats, "var"), low.value(eps, found.frame, node))
    return mean, low.emit("rsqrt", shifted, name="rstd")


def _scaled(low: Lowering, node: torch.fx.Node, y: Value, frame: Frame) -> Value:
    """``y * weight + bias``, as far as they are given."""
    given = arguments(node)
    if given["weight"] is not None:
        y = low.emit("mul", y, low.value(given["weight"], frame, node))
    if given["bias"] is not None:
        y = low.emit("add", y, low.value(given["bias"], frame, node))
    return y


NORMS: dict[Any, Handler] = {
    aten._log_softmax.default: _log_softmax,
    aten.logsumexp.default: _logsumexp,
    aten.native_group_norm.default: _group_norm,
    aten.native_layer_norm.default: _layer_norm,
    aten._safe_softmax.default: _safe_softmax,
    aten._softmax.default: _softmax,
}
