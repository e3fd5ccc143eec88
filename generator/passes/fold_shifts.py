"""Moves the scale of a row into its shift, so that normalising an element is one fused multiply-add.

    (x - c) * r   ->   x * r - c * r        x varies over the tile; c and r by row or group, or not at all

``c * r`` is computed once a row or group, and the compiler contracts the rest.  The float64 meaning stays.
In float32 the product ``c * r`` is rounded where the difference ``x - c`` was: an error of half an ulp of
``c * r`` in place of half an ulp of the result.  Where that is more, ``x`` is about as large as ``c``, and
its own last rounding, times ``r``, is as large: the error at most doubles.

A ``c`` that comes from a row's extreme stays as it is.  There ``x - c`` is meant to be exactly zero for
one ``x`` a row, even if that is the lowest float32, as in the softmax of a row that is masked throughout.
"""

from __future__ import annotations

from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Node, Space

_PER_ROW = (Space.COLUMN, Space.GROUP, Space.SCALAR)
_EXTREMES = ("max", "min", "softmax")


def fold_shifts(spec: FusedSpec) -> FusedSpec:
    """The spec with every such product rewritten, if nothing else reads the difference.

    Expects canonical form.
    """
    while True:
        better = _rewrite(spec)
        if better == spec:
            return spec
        spec = better


def _rewrite(spec: FusedSpec) -> FusedSpec:
    read = [i for node in spec.nodes for i in node.inputs] + [o.node for o in spec.outputs]
    graph = Graph(spec)
    place: list[int] = []
    for node in spec.nodes:
        difference = _difference(spec, node) if node.op == "mul" else None
        if difference is None or read.count(difference) > 1:
            place.append(graph.add(moved(node, place)))
        else:
            place.append(_fold(graph, spec, node, difference, place))
    return graph.spec(with_outputs(spec, place))


def _difference(spec: FusedSpec, product: Node) -> int | None:
    """The factor ``x - c`` of a product with a factor by row."""
    space = spaces(spec)
    for i, r in (product.inputs, product.inputs[::-1]):
        if space[r] not in _PER_ROW or spec.nodes[i].op != "sub":
            continue
        x, c = spec.nodes[i].inputs
        if space[x] is Space.TILE and space[c] in _PER_ROW and not _has_extreme(spec, c):
            return i
    return None


def _has_extreme(spec: FusedSpec, c: int) -> bool:
    """Whether a value by row is computed from the largest or smallest of many."""
    seen: set[int] = set()
    stack = [c]
    while stack:
        i = stack.pop()
        if spec.nodes[i].op in REDUCTIONS and REDUCTIONS[spec.nodes[i].op].monoid.name in _EXTREMES:
            return True
        by_row = [j for j in spec.nodes[i].inputs if spaces(spec)[j] in _PER_ROW]
        stack += [j for j in by_row if j not in seen]
        seen.update(by_row)
    return False


def _fold(graph: Graph, spec: FusedSpec, product: Node, difference: int, place: list[int]) -> int:
    a, b = product.inputs
    r = place[b if a == difference else a]
    x, c = (place[i] for i in spec.nodes[difference].inputs)
    scaled = graph.op(f"{graph.nodes[x].name}_scaled", "mul", x, r)
    shift = graph.op(f"{graph.nodes[c].name}_scaled", "mul", c, r)
    return graph.op(product.name, "sub", scaled, shift)
