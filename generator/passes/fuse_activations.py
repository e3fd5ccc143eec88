"""Finds activations that were written out, and gives them the one op that is cheaper and more accurate.

    1 / (1 + exp(-x))                                       ->  sigmoid(x)
    x * sigmoid(x)                                          ->  silu(x)
    x * sigmoid(1.702 x)                                    ->  quick_gelu(x)
    x * 0.5 * (1 + erf(x / sqrt(2)))                        ->  gelu(x)
    x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) ->  gelu_tanh(x)
    x * tanh(softplus(x))                                   ->  mish(x)
    minimum(relu(x + 3), 6) / 6                             ->  hardsigmoid(x)
    x * hardsigmoid(x)                                      ->  hardswish(x)

in any order of the factors and terms.  Constants may differ from the exact ones in the seventh digit, as
float32 literals do; ``1 + erf`` cancels for negative x, the ops do not.
"""

from __future__ import annotations

import math

from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.passes.products import flatten, is_multiple, other_term
from comfuse.generator.spec import FusedSpec, Node


def fuse_activations(spec: FusedSpec) -> FusedSpec:
    """The spec with every such formula replaced.  Expects canonical form."""
    graph = Graph(spec)
    place: list[int] = []
    for node in spec.nodes:
        place.append(_replace(graph, moved(node, place)))
    return graph.spec(with_outputs(spec, place))


def _replace(graph: Graph, node: Node) -> int:
    if node.op == "mul":
        activation = _activation(graph, node.inputs)
        return graph.add(node) if activation is None else graph.op(node.name, *activation)
    if node.op == "reciprocal":
        x = _logistic_denominator(graph, node.inputs[0])
        return graph.add(node) if x is None else graph.op(node.name, "sigmoid", x)
    if node.op == "div":
        dividend, divisor = node.inputs
        x = _logistic_denominator(graph, divisor)
        if x is not None:
            if x == dividend:
                return graph.op(node.name, "silu", x)
            return graph.op(node.name, "mul", dividend, graph.op(f"{node.name}_gate", "sigmoid", x))
    return graph.add(node)


def _logistic_denominator(graph: Graph, i: int) -> int | None:
    """``x``, if the node is ``1 + exp(-x)``."""
    power = other_term(graph.nodes, i, 1.0)
    if power is None or not graph.is_op(power, "exp"):
        return None
    negative = graph.nodes[power].inputs[0]
    return graph.nodes[negative].inputs[0] if graph.is_op(negative, "neg") else None


def _activation(graph: Graph, product: tuple[int, ...]) -> tuple[str, int] | None:
    """Op and argument of the activation that a product of these is."""
    nodes = graph.nodes
    for gate in flatten(nodes, product).numerator:
        for op, x, constant in _gates(graph, gate):
            if flatten(nodes, product, {x, gate}).is_(constant, (x, gate)):
                return op, x
        hard = _hard_gate(graph, gate)
        if hard is not None and flatten(nodes, product).is_(1.0 / 6.0, (gate,)):
            return "hardsigmoid", hard
    return None


def _gates(graph: Graph, gate: int) -> list[tuple[str, int, float]]:
    """What ``gate`` times an argument times a constant would be: op, argument, constant."""
    nodes = graph.nodes
    inner = nodes[gate].inputs[0] if nodes[gate].inputs else gate
    if graph.is_op(gate, "sigmoid"):
        parts = nodes[inner].inputs if graph.is_op(inner, "mul") else ()
        quick = [("quick_gelu", x, 1.0) for x in parts if is_multiple(nodes, inner, 1.702, [x])]
        return [("silu", inner, 1.0), *quick]
    if graph.is_op(gate, "hardsigmoid"):
        return [("hardswish", inner, 1.0)]
    if graph.is_op(gate, "tanh") and graph.is_op(inner, "softplus"):
        return [("mish", nodes[inner].inputs[0], 1.0)]
    x = _hard_gate(graph, gate)
    return gelu_gates(graph, gate) if x is None else [("hardswish", x, 1.0 / 6.0)]


def gelu_gates(graph: Graph, gate: int) -> list[tuple[str, int, float]]:
    """The activations that ``1 + erf(...)`` or ``1 + tanh(...)`` times an argument and a constant would be.

    Returns:
        Op, argument and constant of each.
    """
    nodes = graph.nodes
    inner = other_term(nodes, gate, 1.0)
    if inner is None or nodes[inner].op not in ("erf", "tanh"):
        return []
    argument = nodes[inner].inputs[0]
    if not graph.is_op(argument, "mul"):
        return []
    parts = nodes[argument].inputs
    if graph.is_op(inner, "erf"):
        return [("gelu", x, 0.5) for x in parts if is_multiple(nodes, argument, math.sqrt(0.5), [x])]
    sums = [i for i in parts if graph.is_op(i, "add")]
    if not sums or not is_multiple(nodes, argument, math.sqrt(2.0 / math.pi), sums[:1]):
        return []
    terms = nodes[sums[0]].inputs
    return [
        ("gelu_tanh", x, 0.5)
        for x, cube in (terms, terms[::-1])
        if is_multiple(nodes, cube, 0.044715, [x, x, x])
    ]


def _hard_gate(graph: Graph, i: int) -> int | None:
    """``x``, if the node is ``minimum(relu(x + 3), 6)``."""
    nodes = graph.nodes
    if not graph.is_op(i, "minimum"):
        return None
    for bounded, bound in (nodes[i].inputs, nodes[i].inputs[::-1]):
        if nodes[bound].value == 6.0 and graph.is_op(bounded, "relu"):
            return other_term(nodes, nodes[bounded].inputs[0], 3.0)
    return None
