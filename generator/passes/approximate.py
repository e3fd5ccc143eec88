"""Takes faster activations where results are rounded to bfloat16, or to less, before anyone sees them.

    gelu(x)           ->  gelu_of_double(x / 2)      and so on
    tanh(x)           ->  fast_tanh(x)
    gelu_backward(..) ->  fast_gelu_backward(..)     and so on

One instruction of the special function unit an element instead of two, which is what such an element costs.
Their error is small beside a rounding to bfloat16, but for large negative arguments, whose small results
have an absolute error only.  So only where nothing magnifies what is small: what reads them, up to the
outputs, are sums and products.

Halves are taken of the terms of a sum, where a product with 1 / 2 is part of a fused multiply-add.
"""

from __future__ import annotations

from comfuse.generator.ops import FAST, REDUCTIONS
from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.spec import DType, FusedSpec, Node

_ROUNDED = (DType.BF16, DType.E4M3, DType.E5M2)
_KEEPS = ("add", "sub", "mul", "neg")  # what passes an absolute error as large as it is; so do sums
_OF_HALF = ("sigmoid", "silu", "quick_gelu", "gelu", "gelu_tanh")
_AS_IT_IS = ("tanh", "gelu_backward", "gelu_tanh_backward", "silu_backward")


def approximate(spec: FusedSpec) -> FusedSpec:
    """The program with every activation replaced that may be.  Means the same, but for rounding.

    Expects canonical form.
    """
    exact = _read_exactly(spec)
    graph = Graph(spec)
    place: list[int] = []
    for i, node in enumerate(spec.nodes):
        new = moved(node, place)
        if i not in exact and node.op in _OF_HALF:
            place.append(graph.op(node.name, f"{node.op}_of_double", _half(graph, *new.inputs)))
        elif i not in exact and node.op in _AS_IT_IS:
            place.append(graph.op(node.name, f"fast_{node.op}", *new.inputs))
        else:
            place.append(graph.add(new))
    return graph.spec(with_outputs(spec, place))


def approximated(spec: FusedSpec) -> tuple[str, ...]:
    """For the decisions of a plan: what of its program :func:`approximate` replaced."""
    return tuple(
        f"{node.name}: by tanh.approx, as results are rounded to 8 bits or fewer"
        for node in spec.nodes
        if node.op in FAST
    )


def _half(graph: Graph, i: int) -> int:
    node = graph.nodes[i]
    name = f"half_{node.name}"
    if node.op == "add":
        return graph.op(name, "add", *(_half(graph, term) for term in node.inputs))
    return graph.op(name, "mul", i, graph.const(0.5, "half"))


def _read_exactly(spec: FusedSpec) -> set[int]:
    """The nodes whose relative error matters: to an output, or to an op on the way there."""
    exact = {output.node for output in spec.outputs if output.dtype not in _ROUNDED}
    for i in reversed(range(len(spec.nodes))):
        if i in exact or not _keeps(spec.nodes[i]):
            exact.update(spec.nodes[i].inputs)
    return exact


def _keeps(node: Node) -> bool:
    return node.op in _KEEPS or (node.op in REDUCTIONS and REDUCTIONS[node.op].monoid.name == "sum")
