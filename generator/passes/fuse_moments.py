"""Finds mean and variance of one value and gives them one Welford reduction.

    s = row_sum(x)                        w = row_welford(x)
    m = s * (1/N)                         m = field(w, mean)
    q = row_sumsq(x - m)          ->      v = field(w, var)
    v = q * (1/N)

and the same for ``row_sumsq(x) * (1/N) - square(m)``, which cancels badly as written; over rows, groups,
columns (whose mean is ``col_sum / row_count``) and everything.  One exchange between the tiles of a row
instead of two, and no phase between the two; over columns, one kernel less.
"""

from __future__ import annotations

from typing import NamedTuple

from comfuse.generator.ops import AXES, REDUCTIONS, Axis
from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.passes.products import flatten
from comfuse.generator.spec import FusedSpec, Node

_TOLERANCE = 1e-12  # of 1/N, as a front end may have computed it


class _Measured(NamedTuple):
    """A value, and what its mean and variance run over."""

    axis: Axis
    x: int


def fuse_moments(spec: FusedSpec) -> FusedSpec:
    """The spec with every mean-and-variance pair fused.  Expects canonical form.

    Of a program without rows, a fused sum over columns or everything is NaN where it was 0.
    """
    measured = _values_with_variance(spec)
    if not measured:
        return spec
    graph = Graph(spec)
    place: list[int] = []
    for index, node in enumerate(spec.nodes):
        place.append(_replace(graph, spec, index, moved(node, place), measured, place))
    return graph.spec(with_outputs(spec, place))


def _replace(
    graph: Graph, spec: FusedSpec, index: int, node: Node, measured: set[_Measured], place: list[int]
) -> int:
    """The new node for old node ``index``; ``node`` is it with its inputs moved."""
    found = _naive_variance(spec, index)
    if found is not None:
        return _field(graph, found, "var", place, node.name)
    found = _centred(spec, index)
    if found is not None:
        variance = _field(graph, found, "var", place, f"{node.name}_var")
        return _times_count(graph, found.axis, variance, node.name)
    found = _mean(spec, index)
    if found in measured:
        return _field(graph, found, "mean", place, node.name)
    found = _sum(spec, index)
    if found in measured and found.axis in ("row", "group"):
        mean = _field(graph, found, "mean", place, f"{node.name}_mean")
        return _times_count(graph, found.axis, mean, node.name)
    return graph.add(node)


def _values_with_variance(spec: FusedSpec) -> set[_Measured]:
    """What the program computes a variance of, in any of the known ways."""
    found: set[_Measured] = set()
    for index, node in enumerate(spec.nodes):
        if node.op in REDUCTIONS and REDUCTIONS[node.op].monoid.name == "welford":
            found.add(_Measured(REDUCTIONS[node.op].axis, node.inputs[0]))
        for value in (_centred(spec, index), _naive_variance(spec, index)):
            if value is not None:
                found.add(value)
    return found


def _centred(spec: FusedSpec, index: int) -> _Measured | None:
    """``x``, if the node is ``row_sumsq(x - mean(x))``."""
    for axis in AXES:
        node = spec.nodes[index]
        if node.op != f"{axis}_sumsq" or spec.nodes[node.inputs[0]].op != "sub":
            continue
        a, b = spec.nodes[node.inputs[0]].inputs
        for x, mean in ((a, b), (b, a)):
            if _mean(spec, mean) == (axis, x):
                return _Measured(axis, x)
    return None


def _naive_variance(spec: FusedSpec, index: int) -> _Measured | None:
    """``x``, if the node is ``row_sumsq(x) * (1/N) - square(mean(x))``."""
    node = spec.nodes[index]
    if node.op != "sub":
        return None
    mean_square, square = node.inputs
    if spec.nodes[square].op != "square":
        return None
    mean = _mean(spec, spec.nodes[square].inputs[0])
    if mean is None or _average(spec, mean_square, f"{mean.axis}_sumsq", mean.axis) != mean.x:
        return None
    return mean


def _mean(spec: FusedSpec, index: int) -> _Measured | None:
    """``x``, if the node is a mean of it."""
    node = spec.nodes[index]
    if node.op == "field" and node.field == "mean":
        welford = spec.nodes[node.inputs[0]]
        return _Measured(REDUCTIONS[welford.op].axis, welford.inputs[0])
    for axis in AXES:
        x = _average(spec, index, f"{axis}_sum", axis)
        if x is not None:
            return _Measured(axis, x)
    return None


def _sum(spec: FusedSpec, index: int) -> _Measured | None:
    node = spec.nodes[index]
    for axis in AXES:
        if node.op == f"{axis}_sum":
            return _Measured(axis, node.inputs[0])
    return None


def _average(spec: FusedSpec, index: int, reduction: str, axis: Axis) -> int | None:
    """``x``, if the node is ``reduction(x)`` divided by the number of its elements."""
    if spec.nodes[index].op not in ("mul", "div"):
        return None
    product = flatten(spec.nodes, [index])
    if len(product.numerator) != 1 or spec.nodes[product.numerator[0]].op != reduction:
        return None
    over_rows = axis in ("col", "full")
    if [spec.nodes[i].op for i in product.denominator] != ["row_count"] * over_rows:
        return None
    if abs(product.constant * _columns(spec.n, spec.group, axis) - 1.0) > _TOLERANCE:
        return None
    return spec.nodes[product.numerator[0]].inputs[0]


def _columns(n: int, group: int | None, axis: Axis) -> int:
    """The number of columns that a reduction runs over."""
    return {"row": n, "group": group or 1, "col": 1, "full": n}[axis]


def _field(graph: Graph, measured: _Measured, field: str, place: list[int], name: str) -> int:
    x = place[measured.x]
    stats = graph.op(f"{graph.nodes[x].name}_stats", f"{measured.axis}_welford", x)
    return graph.op(name, "field", stats, field=field)


def _times_count(graph: Graph, axis: Axis, value: int, name: str) -> int:
    """A mean as a sum."""
    if axis in ("col", "full"):
        value = graph.op(f"{name}_rows", "mul", value, graph.add(Node("row_count", "row_count")))
    return graph.op(name, "mul", value, graph.const(float(_columns(graph.n, graph.group, axis))))
