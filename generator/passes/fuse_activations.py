"""Finds activations that were written out, and gives them the one op that is cheaper and more accurate.

    x * sigmoid(x)                                          ->  silu(x)
    x * 0.5 * (1 + erf(x / sqrt(2)))                        ->  gelu(x)
    x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) ->  gelu_tanh(x)

in any order of the factors and terms.  Constants may differ from the exact ones in the seventh digit, as
float32 literals do; ``1 + erf`` cancels for negative x, the ops do not.
"""

from __future__ import annotations

import math

from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.spec import FusedSpec

_TOLERANCE = 1e-6
_MOST_FACTORS = 8  # of the products looked at


def fuse_activations(spec: FusedSpec) -> FusedSpec:
    """The spec with every such product replaced.  Expects canonical form."""
    graph = Graph(spec)
    place: list[int] = []
    for node in spec.nodes:
        node = moved(node, place)
        activation = _activation(graph, node.inputs) if node.op == "mul" else None
        place.append(graph.add(node) if activation is None else graph.op(node.name, *activation))
    return graph.spec(with_outputs(spec, place))


def _activation(graph: Graph, product: tuple[int, ...]) -> tuple[str, int] | None:
    """Op and argument of the activation that a product of these is."""
    for gate in _factors(graph, product, set())[1]:
        for op, x, constant in _gates(graph, gate):
            found_constant, found = _factors(graph, product, {x, gate})
            if sorted(found) == sorted((x, gate)) and _is(found_constant, constant):
                return op, x
    return None


def _gates(graph: Graph, gate: int) -> list[tuple[str, int, float]]:
    """What ``gate`` times an argument times a constant would be: op, argument, constant."""
    if graph.is_op(gate, "sigmoid"):
        return [("silu", graph.nodes[gate].inputs[0], 1.0)]
    inner = _other_term(graph, gate, 1.0)
    if inner is None or graph.nodes[inner].op not in ("erf", "tanh"):
        return []
    argument = graph.nodes[inner].inputs[0]
    if not graph.is_op(argument, "mul"):
        return []
    parts = graph.nodes[argument].inputs
    if graph.is_op(inner, "erf"):
        return [("gelu", x, 0.5) for x in parts if _is_multiple(graph, argument, math.sqrt(0.5), [x])]
    sums = [i for i in parts if graph.is_op(i, "add")]
    if not sums or not _is_multiple(graph, argument, math.sqrt(2.0 / math.pi), sums[:1]):
        return []
    terms = graph.nodes[sums[0]].inputs
    return [
        ("gelu_tanh", x, 0.5)
        for x, cube in (terms, terms[::-1])
        if _is_multiple(graph, cube, 0.044715, [x, x, x])
    ]


def _is_multiple(graph: Graph, i: int, constant: float, factors: list[int]) -> bool:
    """Whether a node is ``constant`` times the product of ``factors``."""
    found_constant, found = _factors(graph, (i,), set(factors))
    return found == factors and _is(found_constant, constant)


def _factors(graph: Graph, product: tuple[int, ...], atoms: set[int]) -> tuple[float, list[int]]:
    """A product, flattened down to ``atoms``: its constant, and the nodes that it multiplies."""
    constant = 1.0
    factors: list[int] = []
    stack = list(product)
    while stack and len(factors) + len(stack) <= _MOST_FACTORS:
        i = stack.pop()
        node = graph.nodes[i]
        if node.op == "const" and node.value is not None:
            constant *= node.value
        elif node.op == "mul" and i not in atoms:
            stack += node.inputs
        elif node.op == "square" and i not in atoms:
            stack += node.inputs * 2
        else:
            factors.append(i)
    return constant, factors + stack


def _other_term(graph: Graph, i: int, constant: float) -> int | None:
    """``y``, if the node is ``y + constant``."""
    if not graph.is_op(i, "add"):
        return None
    a, b = graph.nodes[i].inputs
    if graph.constant(b) == constant:
        return a
    return b if graph.constant(a) == constant else None


def _is(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _TOLERANCE * abs(wanted)
