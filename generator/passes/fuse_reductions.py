"""Finds mean and variance of one value and gives them one Welford reduction.

    s = row_sum(x)                        w = row_welford(x)
    m = s * (1/N)                         m = field(w, mean)
    q = row_sumsq(x - m)          ->      v = field(w, var)
    v = q * (1/N)

and the same for ``row_sumsq(x) * (1/N) - square(m)``, which cancels badly as written.  One exchange
between the tiles of a row instead of two, and no phase between the two.
"""

from __future__ import annotations

from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.spec import FusedSpec, Node

_TOLERANCE = 1e-12  # of 1/N, as a front end may have computed it


def fuse_reductions(spec: FusedSpec) -> FusedSpec:
    """The spec with every mean-and-variance pair fused.  Expects canonical form."""
    measured = _values_with_variance(spec)
    if not measured:
        return spec
    graph = Graph(spec)
    place: list[int] = []
    for index, node in enumerate(spec.nodes):
        place.append(_replace(graph, spec, index, moved(node, place), measured, place))
    return graph.spec(with_outputs(spec, place))


def _replace(
    graph: Graph, spec: FusedSpec, index: int, node: Node, measured: set[int], place: list[int]
) -> int:
    """The new node for old node ``index``; ``node`` is it with its inputs moved."""
    value = _naive_variance(spec, index)
    if value is not None:
        return _field(graph, place[value], "var", node.name)
    value = _centred(spec, index)
    if value is not None:
        return _times_n(graph, _field(graph, place[value], "var", f"{node.name}_var"), node.name)
    if node.op == "row_sum" and spec.nodes[index].inputs[0] in measured:
        return _times_n(graph, _field(graph, node.inputs[0], "mean", f"{node.name}_mean"), node.name)
    return graph.add(node)


def _values_with_variance(spec: FusedSpec) -> set[int]:
    """The values whose variance the program computes, in any of the known ways."""
    found: set[int] = set()
    for index, node in enumerate(spec.nodes):
        if node.op == "row_welford":
            found.add(node.inputs[0])
        for value in (_centred(spec, index), _naive_variance(spec, index)):
            if value is not None:
                found.add(value)
    return found


def _centred(spec: FusedSpec, index: int) -> int | None:
    """``x``, if the node is ``row_sumsq(x - mean(x))``."""
    node = spec.nodes[index]
    if node.op != "row_sumsq" or spec.nodes[node.inputs[0]].op != "sub":
        return None
    a, b = spec.nodes[node.inputs[0]].inputs
    if _mean_of(spec, b) == a:
        return a
    return b if _mean_of(spec, a) == b else None


def _naive_variance(spec: FusedSpec, index: int) -> int | None:
    """``x``, if the node is ``row_sumsq(x) * (1/N) - square(mean(x))``."""
    node = spec.nodes[index]
    if node.op != "sub":
        return None
    mean_square, square = node.inputs
    x = _scaled(spec, mean_square, "row_sumsq")
    if x is None or spec.nodes[square].op != "square":
        return None
    return x if _mean_of(spec, spec.nodes[square].inputs[0]) == x else None


def _mean_of(spec: FusedSpec, index: int) -> int | None:
    """``x``, if the node is its row mean."""
    node = spec.nodes[index]
    if node.op == "field" and node.field == "mean":
        return spec.nodes[node.inputs[0]].inputs[0]
    return _scaled(spec, index, "row_sum")


def _scaled(spec: FusedSpec, index: int, reduction: str) -> int | None:
    """``x``, if the node is ``reduction(x) * (1/N)``."""
    node = spec.nodes[index]
    if node.op != "mul":
        return None
    for i, j in (node.inputs, node.inputs[::-1]):
        factor = spec.nodes[j].value
        if factor is None or abs(factor * spec.n - 1.0) > _TOLERANCE:
            continue
        if spec.nodes[i].op == reduction:
            return spec.nodes[i].inputs[0]
    return None


def _field(graph: Graph, x: int, field: str, name: str) -> int:
    stats = graph.op(f"{graph.nodes[x].name}_stats", "row_welford", x)
    return graph.op(name, "field", stats, field=field)


def _times_n(graph: Graph, value: int, name: str) -> int:
    return graph.op(name, "mul", value, graph.const(float(graph.n)))
