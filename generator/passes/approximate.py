"""Takes faster activations where a result is rounded to bfloat16 before anyone sees it.

    gelu(x)  ->  gelu_of_double(x / 2)      and so on; tanh(x)  ->  fast_tanh(x)

One instruction of the special function unit an element instead of two, which is what such an element costs.
Their error is absolute, and small beside that of rounding results of about 1.  So only where nothing
magnifies what is small: what reads them, up to the output, are sums and products.

Halves are taken of the terms of a sum, where a product with 1 / 2 is part of a fused multiply-add.
"""

from __future__ import annotations

from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.spec import DType, FusedSpec

_KEEPS = ("add", "sub", "mul", "neg")  # what passes an absolute error as large as it is
_OF_HALF = ("sigmoid", "silu", "quick_gelu", "gelu", "gelu_tanh")


def approximate(spec: FusedSpec) -> FusedSpec:
    """The program with every activation replaced that may be; its output is rounded to its dtype."""
    if spec.dtype is not DType.BF16:
        return spec
    exact = _read_exactly(spec)
    graph = Graph(spec)
    place: list[int] = []
    for i, node in enumerate(spec.nodes):
        new = moved(node, place)
        if i in exact or node.op not in (*_OF_HALF, "tanh"):
            place.append(graph.add(new))
        elif node.op == "tanh":
            place.append(graph.op(node.name, "fast_tanh", *new.inputs))
        else:
            place.append(graph.op(node.name, f"{node.op}_of_double", _half(graph, *new.inputs)))
    return graph.spec(with_outputs(spec, place))


def _half(graph: Graph, i: int) -> int:
    node = graph.nodes[i]
    name = f"half_{node.name}"
    if node.op == "add":
        return graph.op(name, "add", *(_half(graph, term) for term in node.inputs))
    return graph.op(name, "mul", i, graph.const(0.5, "half"))


def _read_exactly(spec: FusedSpec) -> set[int]:
    """The nodes whose relative error matters: those that other ops read on the way to an output."""
    exact: set[int] = set()
    for i in reversed(range(len(spec.nodes))):
        node = spec.nodes[i]
        if i in exact or node.op not in _KEEPS:
            exact.update(node.inputs)
    return exact
