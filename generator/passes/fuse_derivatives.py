"""Finds derivatives of activations as aten's decompositions write them, and gives them their one op.

    g * s * (1 + x * (1 - s)),  s = sigmoid(x)                              ->  silu_backward(g, x)
    g * (0.5 * (1 + erf(x / sqrt(2))) + x * exp(-0.5 x^2) / sqrt(2 pi))     ->  gelu_backward(g, x)
    g * (0.5 * (1 + t) + 0.5 x * (1 - t^2) * sqrt(2 / pi) * (1 + 3 * 0.044715 x^2)),
        t = tanh(sqrt(2 / pi) * (x + 0.044715 x^3))                         ->  gelu_tanh_backward(g, x)

in any order of the factors and terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from comfuse.generator.passes.fuse_activations import gelu_gates
from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.passes.products import Product, flatten, is_multiple, other_term
from comfuse.generator.spec import FusedSpec, Node


def fuse_derivatives(spec: FusedSpec) -> FusedSpec:
    """The spec with every such product replaced.  Expects canonical form."""
    graph = Graph(spec)
    place: list[int] = []
    for node in spec.nodes:
        node = moved(node, place)
        replacement = _replace(graph, node) if node.op == "mul" else None
        place.append(graph.add(node) if replacement is None else replacement)
    return graph.spec(with_outputs(spec, place))


def _replace(graph: Graph, node: Node) -> int | None:
    for slope in flatten(graph.nodes, node.inputs).numerator:
        for op, x, gates in _slopes(graph, slope):
            product = flatten(graph.nodes, node.inputs, {slope, *gates})
            for used in (slope, *gates):
                if used not in product.numerator:
                    break
                product.numerator.remove(used)
            else:
                grad = _rest(graph, node.name, product)
                if grad is not None:
                    return graph.op(node.name, op, grad, x)
    return None


def _slopes(graph: Graph, slope: int) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """What ``slope`` times a gradient and these other factors would be: op, argument, factors."""
    nodes = graph.nodes
    if not graph.is_op(slope, "add"):
        return
    inner = other_term(nodes, slope, 1.0)
    if inner is not None:
        for complement in flatten(nodes, [inner]).numerator:
            gate = _complement(graph, complement)
            if gate is not None and graph.is_op(gate, "sigmoid"):
                x = nodes[gate].inputs[0]
                if is_multiple(nodes, inner, 1.0, [x, complement]):
                    yield "silu_backward", x, (gate,)
    for cdf, rest in (nodes[slope].inputs, nodes[slope].inputs[::-1]):
        for op, x, gate in _cdfs(graph, cdf):
            if _is_x_density(graph, rest, x) if op == "gelu" else _is_x_slope(graph, rest, x, gate):
                yield f"{op}_backward", x, ()


def _complement(graph: Graph, i: int) -> int | None:
    """``s``, if the node is ``1 - s``."""
    if not graph.is_op(i, "sub"):
        return None
    one, s = graph.nodes[i].inputs
    return s if graph.constant(one) == 1.0 else None


def _cdfs(graph: Graph, i: int) -> Iterator[tuple[str, int, int]]:
    """What the node would be half of a gate of: activation, its argument, and the erf or tanh in it.

    Of gelu it is ``0.5 * (1 + erf(x / sqrt(2)))``, of gelu_tanh the same with tanh.
    """
    nodes = graph.nodes
    product = flatten(nodes, [i])
    if len(product.numerator) != 1 or not product.is_(0.5, product.numerator):
        return
    (gate,) = product.numerator
    for op, x, _ in gelu_gates(graph, gate):
        curve = other_term(nodes, gate, 1.0)
        assert curve is not None
        yield op, x, curve


def _is_x_density(graph: Graph, i: int, x: int) -> bool:
    """Whether a node is ``x`` times the density of the normal distribution at ``x``."""
    nodes = graph.nodes
    for power in flatten(nodes, [i], [x]).numerator:
        if graph.is_op(power, "exp") and is_multiple(nodes, nodes[power].inputs[0], -0.5, [x, x]):
            return is_multiple(nodes, i, 1.0 / math.sqrt(2.0 * math.pi), [x, power])
    return False


def _is_x_slope(graph: Graph, i: int, x: int, tanh: int) -> bool:
    """Whether a node is ``x`` times the derivative of ``0.5 * tanh(...)``, half of gelu_tanh's gate."""
    nodes = graph.nodes
    product = flatten(nodes, [i], [x])
    rest = [factor for factor in product.numerator if factor != x]
    if len(rest) != 2 or not product.is_(0.5 * math.sqrt(2.0 / math.pi), [x, *rest]):
        return False
    for complement, inner in (rest, rest[::-1]):
        squared, term = _complement(graph, complement), other_term(nodes, inner, 1.0)
        if squared is not None and term is not None and is_multiple(nodes, squared, 1.0, [tanh, tanh]):
            return is_multiple(nodes, term, 3 * 0.044715, [x, x])
    return False


def _rest(graph: Graph, name: str, product: Product) -> int | None:
    """What is left of a product, as a node."""
    if product.denominator or not product.numerator:
        return None
    factors = list(product.numerator)
    if product.constant != 1.0:
        factors.append(graph.const(product.constant, f"{name}_factor"))
    result = factors[0]
    for factor in factors[1:]:
        result = graph.op(f"{name}_grad", "mul", result, factor)
    return result
