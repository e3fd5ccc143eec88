"""Sums, extremes, means, variances, norms and tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from comfuse.frontend.handlers.over import Over, over
from comfuse.frontend.placing import Result, Value
from comfuse.frontend.views import arguments, dtype_of, refuse, shape_of

if TYPE_CHECKING:
    from comfuse.frontend.lowering import Lowering

aten = torch.ops.aten

Handler = Callable[["Lowering", torch.fx.Node], Result]


def results(found: Over, *values: Value | None) -> Result:
    """The values as the results of the node, each in the shape that it has in the graph."""
    expected = found.node.meta["val"]
    if isinstance(expected, torch.Tensor):
        (value,) = values
        assert value is not None
        return found.term(value, expected.shape)
    return tuple(
        None if value is None else found.term(value, tensor.shape)
        for value, tensor in zip(values, expected, strict=True)
    )


def _dims(node: torch.fx.Node) -> Any:
    return arguments(node).get("dim")


def _plain(monoid: str) -> Handler:
    def handler(low: Lowering, node: torch.fx.Node) -> Result:
        found = over(low, node, node.args[0], _dims(node))
        if monoid in ("prod", "sum"):
            low.ranges.check_sum(node, monoid, None if found.over_rows else found.columns)
        return results(found, found.reduce(monoid))

    return handler


def _with_index(monoid: str) -> Handler:
    """The extreme of a row, and where it first is.  The index costs nothing where nobody reads it."""

    def handler(low: Lowering, node: torch.fx.Node) -> Result:
        found = over(low, node, node.args[0], _dims(node))
        used = {user.args[1] for user in node.users}
        index = found.reduce(f"arg{monoid}") if 1 in used else None
        return results(found, found.reduce(monoid) if 0 in used else None, index)

    return handler


def _index(monoid: str) -> Handler:
    def handler(low: Lowering, node: torch.fx.Node) -> Result:
        if _dims(node) is None and len(shape_of(node.args[0])) > 1:  # type: ignore[arg-type]
            raise refuse(node, f"{monoid} over everything is not available; give it dim=-1")
        found = over(low, node, node.args[0], _dims(node))
        return results(found, found.reduce(monoid))

    return handler


def _aminmax(low: Lowering, node: torch.fx.Node) -> Result:
    found = over(low, node, node.args[0], _dims(node))
    return results(found, found.reduce("min"), found.reduce("max"))


def _mean(low: Lowering, node: torch.fx.Node) -> Result:
    found = over(low, node, node.args[0], _dims(node))
    return results(found, found.mean(found.reduce("sum")))


def _variance(low: Lowering, node: torch.fx.Node) -> Result:
    """Variance, or variance and mean.  ``correction`` 0 divides by the count, 1 (the default) by one less."""
    given = arguments(node)
    found = over(low, node, node.args[0], _dims(node))
    correction = 1 if given["correction"] is None else given["correction"]
    stats = found.reduce("welford", name="stats")
    variance = low.field(stats, "var")
    if correction != 0:
        variance = _corrected(low, node, found, variance, float(correction))
    if node.target is aten.var_mean.correction:
        return results(found, variance, low.field(stats, "mean"))
    return results(found, variance)


def _corrected(low: Lowering, node: torch.fx.Node, found: Over, variance: Value, correction: float) -> Value:
    if found.over_rows:
        count = found.count()
        degrees = low.emit("sub", count, low.const(correction))
        return low.emit("mul", variance, low.emit("div", count, degrees))
    if correction >= found.columns:
        raise refuse(
            node, f"correction {correction:g} leaves no degree of freedom in {found.columns} columns"
        )
    return low.emit("mul", variance, low.const(found.columns / (found.columns - correction)))


def _norm(low: Lowering, node: torch.fx.Node) -> Result:
    given = arguments(node)
    order = float(given["ord"])
    found = over(low, node, given["self"], given["dim"])
    if order == 2:
        return results(found, low.emit("sqrt", found.reduce("sumsq")))
    if order == 0:
        return results(found, found.reduce("sum", low.emit("ne", found.x, low.const(0.0))))
    monoids = {1.0: "sum", math.inf: "max", -math.inf: "min"}
    if order not in monoids:
        raise refuse(node, f"a norm of order {order:g}; allowed: 0, 1, 2, inf, -inf")
    return results(found, found.reduce(monoids[order], low.emit("abs", found.x)))


def _of_truth(monoid: str) -> Handler:
    """``any``, ``all`` and ``count_nonzero``: a reduction of 1 where the value is not 0."""

    def handler(low: Lowering, node: torch.fx.Node) -> Result:
        found = over(low, node, node.args[0], _dims(node))
        is_bool = dtype_of(node.args[0]) is torch.bool  # type: ignore[arg-type]
        truth = found.x if is_bool else low.emit("ne", found.x, low.const(0.0))
        return results(found, found.reduce(monoid, truth))

    return handler


REDUCTIONS: dict[Any, Handler] = {
    aten.all.default: _of_truth("min"),
    aten.all.dim: _of_truth("min"),
    aten.all.dims: _of_truth("min"),
    aten.amax.default: _plain("max"),
    aten.amin.default: _plain("min"),
    aten.aminmax.default: _aminmax,
    aten.any.default: _of_truth("max"),
    aten.any.dim: _of_truth("max"),
    aten.any.dims: _of_truth("max"),
    aten.argmax.default: _index("argmax"),
    aten.argmin.default: _index("argmin"),
    aten.count_nonzero.default: _of_truth("sum"),
    aten.count_nonzero.dim_IntList: _of_truth("sum"),
    aten.linalg_vector_norm.default: _norm,
    aten.max.default: _plain("max"),
    aten.max.dim: _with_index("max"),
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.min.default: _plain("min"),
    aten.min.dim: _with_index("min"),
    aten.prod.default: _plain("prod"),
    aten.prod.dim_int: _plain("prod"),
    aten.sum.default: _plain("sum"),
    aten.sum.dim_IntList: _plain("sum"),
    aten.var.correction: _variance,
    aten.var_mean.correction: _variance,
}
