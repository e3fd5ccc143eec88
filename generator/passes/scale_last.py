"""Multiplies by the root mean square of a row last, so that all else is done when it arrives.

    (x * c) * w   ->   (x * w) * c        x varies over the tile, w by column,
    x * (c * w)   ->   (x * w) * c        c by row: it comes from a sum of x's squares

``x * w`` does not wait for ``c``.  So it can be had while a tile waits for the other tiles of its row, of
whose squares it needs the sum (:mod:`comfuse.generator.phases.split`).  What the plan runs, not what a
program is: where no tile waits, nothing is gained by it.

The float64 meaning stays.  In float32 two products are rounded, as before, each by half an ulp at most.  Nor
does ``x * w`` leave the range of float32 where ``(x * c) * w`` does not, unless weights are extreme: from an
``x`` of 2^64 on the sum of squares is infinite, which spoils the row either way, and below that it takes a
``w`` of 2^64.  Where ``x * w`` is subnormal, ``x`` is so small that its square was lost beside any epsilon.
Other values a row promise nothing of ``x``, and stay where they are.
"""

from __future__ import annotations

from typing import NamedTuple

from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Node, Space

_OF_SQUARES = ("sumsq", "welford")


class _Factors(NamedTuple):
    """Of a product of three."""

    x: int  # of the tile
    c: int  # by row, from x's squares
    w: int  # by column


def scale_last(spec: FusedSpec) -> FusedSpec:
    """The spec with every such product rewritten, if nothing else reads the product within it.

    Expects canonical form.  Idempotent.
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
        found = _factors(spec, node, read)
        if found is None:
            place.append(graph.add(moved(node, place)))
            continue
        x, c, w = (place[i] for i in found)
        weighted = graph.op(f"{graph.nodes[x].name}_weighted", "mul", x, w)
        place.append(graph.op(node.name, "mul", weighted, c))
    return graph.spec(with_outputs(spec, place))


def _factors(spec: FusedSpec, node: Node, read: list[int]) -> _Factors | None:
    if node.op != "mul":
        return None
    for inner, outer in (node.inputs, node.inputs[::-1]):
        if spec.nodes[inner].op != "mul" or read.count(inner) > 1:
            continue
        a, b = spec.nodes[inner].inputs
        for first, second in ((a, b), (b, a)):
            for found in (_Factors(first, second, outer), _Factors(outer, first, second)):
                if _are_to_move(spec, found):
                    return found
    return None


def _are_to_move(spec: FusedSpec, found: _Factors) -> bool:
    space = spaces(spec)
    if (space[found.x], space[found.c], space[found.w]) != (Space.TILE, Space.COLUMN, Space.ROW):
        return False
    return not _squared(spec, found.c).isdisjoint(_without_weights(spec, found.x))


def _squared(spec: FusedSpec, c: int) -> set[int]:
    """What the sums of squares are of that a value by row is computed from."""
    found: set[int] = set()
    seen = {c}
    stack = [c]
    while stack:
        i = stack.pop()
        node = spec.nodes[i]
        if node.op in REDUCTIONS:
            if REDUCTIONS[node.op].axis == "row" and REDUCTIONS[node.op].monoid.name in _OF_SQUARES:
                found.update(node.inputs)
            continue
        by_row = [j for j in node.inputs if spaces(spec)[j] is Space.COLUMN and j not in seen]
        stack += by_row
        seen.update(by_row)
    return found


def _without_weights(spec: FusedSpec, x: int) -> list[int]:
    """``x``, and what is left of it without factors by column, one after the other."""
    found = [x]
    while spec.nodes[found[-1]].op == "mul":
        tiles = [j for j in spec.nodes[found[-1]].inputs if spaces(spec)[j] is not Space.ROW]
        if len(tiles) != 1:
            break
        found += tiles
    return found
