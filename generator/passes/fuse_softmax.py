"""Finds the largest entry and the sum of exponentials, and gives them one reduction.

    m = row_max(x)                        r = row_softmax(x)
    e = exp(x - m)                ->      m = field(r, max)
    s = row_sum(e)                        s = field(r, sumexp)

and the same by groups.  One exchange between the tiles of a row instead of two, and no phase between the two.
``e`` stays where something else reads it.

``torch.logsumexp`` shifts by ``where(isinf(m), 0, m)``, so that an infinite ``m`` is its result:

    c = where(isinf(m), 0, m)             r = row_softmax(x)
    s = row_sum(exp(x - c))       ->      s = where(isinf(m), exp(m), field(r, sumexp))
    lse = log(s) + c                      lse = field(r, lse)

``log(s) + m`` with the plain shift is NaN there, and stays as it is.
"""

from __future__ import annotations

from typing import NamedTuple

from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.spec import FusedSpec, Node

_AXES = ("row", "group")


class _Sum(NamedTuple):
    """A sum of ``exp(x - shift)`` over an axis.  ``isinf`` is the condition of a shift that guards."""

    axis: str
    x: int
    shift: int
    isinf: int | None


def fuse_softmax(spec: FusedSpec) -> FusedSpec:
    """The spec with every such pair fused, and a largest entry taken from there.  Expects canonical form."""
    sums = {i: found for i in range(len(spec.nodes)) if (found := _sum(spec, i)) is not None}
    fused = {(found.axis, found.x) for found in sums.values()} | _already_fused(spec)
    if not fused:
        return spec
    graph = Graph(spec)
    place: list[int] = []
    for index, node in enumerate(spec.nodes):
        place.append(_replace(graph, spec, index, moved(node, place), sums, fused, place))
    return graph.spec(with_outputs(spec, place))


def _replace(
    graph: Graph,
    spec: FusedSpec,
    index: int,
    node: Node,
    sums: dict[int, _Sum],
    fused: set[tuple[str, int]],
    place: list[int],
) -> int:
    """The new node for old node ``index``; ``node`` is it with its inputs moved."""
    for axis in _AXES:
        if node.op == f"{axis}_max" and (axis, spec.nodes[index].inputs[0]) in fused:
            return _field(graph, axis, node.inputs[0], "max", node.name)
    if index in sums:
        found = sums[index]
        if found.isinf is None:
            return _field(graph, found.axis, place[found.x], "sumexp", node.name)
        total = _field(graph, found.axis, place[found.x], "sumexp", f"{node.name}_finite")
        peak = _field(graph, found.axis, place[found.x], "max", f"{node.name}_max")
        infinite = graph.op(f"{node.name}_infinite", "exp", peak)
        return graph.op(node.name, "where", place[found.isinf], infinite, total)
    found_sum = _logarithm(spec, index, sums)
    if found_sum is not None:
        return _field(graph, found_sum.axis, place[found_sum.x], "lse", node.name)
    return graph.add(node)


def _already_fused(spec: FusedSpec) -> set[tuple[str, int]]:
    return {(axis, n.inputs[0]) for n in spec.nodes for axis in _AXES if n.op == f"{axis}_softmax"}


def _sum(spec: FusedSpec, index: int) -> _Sum | None:
    """What the node sums, if it is a sum of ``exp(x - m)`` with ``m`` the largest ``x``."""
    node = spec.nodes[index]
    axis = next((axis for axis in _AXES if node.op == f"{axis}_sum"), None)
    if axis is None or spec.nodes[node.inputs[0]].op != "exp":
        return None
    difference = spec.nodes[spec.nodes[node.inputs[0]].inputs[0]]
    if difference.op != "sub":
        return None
    x, shift = difference.inputs
    if _is_max(spec, shift, axis, x):
        return _Sum(axis, x, shift, None)
    guard = spec.nodes[shift]
    if guard.op != "where":
        return None
    condition, zero, peak = guard.inputs
    asks = spec.nodes[condition]
    if spec.nodes[zero].value == 0.0 and asks.op == "isinf" and asks.inputs == (peak,):
        return _Sum(axis, x, shift, condition) if _is_max(spec, peak, axis, x) else None
    return None


def _is_max(spec: FusedSpec, index: int, axis: str, x: int) -> bool:
    node = spec.nodes[index]
    if node.op == "field" and node.field == "max":
        node = spec.nodes[node.inputs[0]]
        return node.op == f"{axis}_softmax" and node.inputs == (x,)
    return node.op == f"{axis}_max" and node.inputs == (x,)


def _logarithm(spec: FusedSpec, index: int, sums: dict[int, _Sum]) -> _Sum | None:
    """The sum, if the node is ``log(sum) + shift`` with a shift that guards."""
    node = spec.nodes[index]
    if node.op != "add":
        return None
    for logarithm, shift in (node.inputs, node.inputs[::-1]):
        if spec.nodes[logarithm].op == "log":
            found = sums.get(spec.nodes[logarithm].inputs[0])
            if found is not None and found.isinf is not None and found.shift == shift:
                return found
    return None


def _field(graph: Graph, axis: str, x: int, field: str, name: str) -> int:
    softmax = graph.op(f"{graph.nodes[x].name}_exp", f"{axis}_softmax", x)
    return graph.op(name, "field", softmax, field=field)
