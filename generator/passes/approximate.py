"""Takes faster activations where results are rounded to bfloat16, or to less, before anyone sees them.

    silu(x)               ->  silu_of_double(x / 2)               and so on
    silu_backward(g, x)   ->  silu_backward_of_double(g, x / 2)   and so on
    tanh(x)               ->  fast_tanh(x)
    gelu(x)               ->  2 half_gelu_of_quadruple(x / 4)     only what is handed on to a GEMM

One instruction of the special function unit an element instead of two, which is what such an element costs.
Beside a GELU that stays exact its derivative needs none:

    gelu(x), gelu_backward(g, x)  ->  x p, gelu_backward_of_cdf(g, x, p)   with p = normal_cdf(x)

Their error is small beside a rounding to bfloat16, but for large negative arguments, whose small results
have an absolute error only.  So only where nothing magnifies what is small: what reads them, up to the
outputs, are sums and products.  GELU is small sooner than the others: nobody may look at its elements.

Parts of x are those of the terms of a sum, where a product with a constant is part of a fused multiply-add.
The factor of two waits behind the GEMM, likewise.
"""

from __future__ import annotations

from comfuse.generator.ops import FAST, REDUCTIONS
from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Node, Space

_HOW = {"gelu_backward_of_cdf": "by what its GELU computes"}  # other than by tanh.approx
_ROUNDED = (DType.BF16, DType.E4M3, DType.E5M2)
_KEEPS = ("add", "sub", "mul", "neg")  # what passes an absolute error as large as it is; so do sums
_MAGNIFIES = (
    "div", "reciprocal", "rsqrt", "exp", "exp2", "expm1", "pow", "tan", "asin", "acos", "acosh", "atanh",
)  # fmt: skip
# The argument that is halved comes last.
_OF_HALF = (
    "sigmoid", "silu", "quick_gelu", "gelu_tanh", "silu_backward", "gelu_backward", "gelu_tanh_backward",
)  # fmt: skip


def approximate(spec: FusedSpec) -> FusedSpec:
    """The program with every activation replaced that may be.  Means the same, but for rounding.

    Expects canonical form.
    """
    return _Rewriter(spec, handed_on=False).run()


def approximate_handed_on(spec: FusedSpec) -> tuple[FusedSpec, float]:
    """Of a program whose output is the A of another GEMM: with a factor that is left to that one."""
    rewriter = _Rewriter(spec, handed_on=True)
    return rewriter.run(), rewriter.factor


def multiplied(spec: FusedSpec, factor: float) -> FusedSpec:
    """The program with its product times a constant."""
    if factor == 1.0:
        return spec
    graph = Graph(spec)
    place: list[int] = []
    for node in spec.nodes:
        new = graph.add(moved(node, place))
        if node.op == "gemm":
            new = graph.op(f"{node.name}_scaled", "mul", new, graph.const(factor, "factor"))
        place.append(new)
    return graph.spec(with_outputs(spec, place))


def approximated(spec: FusedSpec) -> tuple[str, ...]:
    """For the decisions of a plan: what of its program :func:`approximate` replaced."""
    return tuple(
        f"{node.name}: {_HOW.get(node.op, 'by tanh.approx')}, as results are rounded to 8 bits or fewer"
        for node in spec.nodes
        if node.op in FAST
    )


class _Rewriter:
    def __init__(self, spec: FusedSpec, *, handed_on: bool) -> None:
        self.spec, self.handed_on = spec, handed_on
        self.graph = Graph(spec)
        self.factor = 1.0
        self._place: list[int] = []
        self._factors: dict[int, float] = {}  # of a node of the spec: what its place is still to be times
        self._parts: dict[tuple[int, float], int] = {}
        self._exactly_read = _read_exactly(spec)
        # What GELU and its derivative both read, where GELU stays as it is and its derivative need not.
        gelus = {node.inputs[0] for node in spec.nodes if node.op == "gelu" and not handed_on}
        self._shared = gelus & {
            node.inputs[-1]
            for i, node in enumerate(spec.nodes)
            if node.op == "gelu_backward" and i not in self._exactly_read
        }

    def run(self) -> FusedSpec:
        for i, node in enumerate(self.spec.nodes):
            self._place.append(self._replacement(i, node))
        if self.handed_on:
            self.factor = self._factors.get(self.spec.outputs[0].node, 1.0)
        return self.graph.spec(with_outputs(self.spec, self._place))

    def _replacement(self, i: int, node: Node) -> int:
        if node.op == "gelu" and node.inputs[0] in self._shared:
            x = self._whole(node.inputs[0])
            return self.graph.op(node.name, "mul", x, self._cdf(x))
        return self._exact(i) if i in self._exactly_read else self._fast(i, node)

    def _cdf(self, x: int) -> int:
        return self.graph.op(f"cdf_of_{self.graph.nodes[x].name}", "normal_cdf", x)

    def _fast(self, i: int, node: Node) -> int:
        graph = self.graph
        if node.op == "gelu_backward" and node.inputs[1] in self._shared:
            grad, x = (self._whole(j) for j in node.inputs)
            return graph.op(node.name, "gelu_backward_of_cdf", grad, x, self._cdf(x))
        if node.op in _OF_HALF:
            *others, x = (self._whole(j) for j in node.inputs)
            return graph.op(node.name, f"{node.op}_of_double", *others, self._part(x, 0.5))
        if node.op == "gelu" and self.handed_on:
            self._factors[i] = 2.0
            x = self._part(self._whole(node.inputs[0]), 0.25)
            return graph.op(node.name, "half_gelu_of_quadruple", x)
        if node.op == "tanh":
            return graph.op(node.name, "fast_tanh", self._whole(node.inputs[0]))
        if node.op in ("mul", "neg"):
            factors = [self._factors[j] for j in node.inputs if j in self._factors]
            if factors:
                self._factors[i] = factors[0] * (factors[1] if len(factors) > 1 else 1.0)
            return graph.add(moved(node, self._place))
        return self._exact(i)

    def _exact(self, i: int) -> int:
        node = self.spec.nodes[i]
        inputs = {j: self._whole(j) for j in node.inputs}
        return self.graph.add(moved(node, [inputs.get(j, k) for j, k in enumerate(self._place)]))

    def _whole(self, i: int) -> int:
        """The place of a node's value, with its factor."""
        if i not in self._factors:
            return self._place[i]
        factor = self.graph.const(self._factors[i], "factor")
        return self.graph.op(f"{self.spec.nodes[i].name}_whole", "mul", self._place[i], factor)

    def _part(self, i: int, factor: float) -> int:
        if (i, factor) not in self._parts:
            node = self.graph.nodes[i]
            name = f"part_of_{node.name}"
            if node.op == "add":
                terms = [self._part(term, factor) for term in node.inputs]
                self._parts[i, factor] = self.graph.op(name, "add", *terms)
            else:
                constant = self.graph.const(factor, "half" if factor == 0.5 else "quarter")
                self._parts[i, factor] = self.graph.op(name, "mul", i, constant)
        return self._parts[i, factor]


def _read_exactly(spec: FusedSpec) -> set[int]:
    """The nodes whose relative error matters: to an output, or to an op on the way there."""
    exact = {output.node for output in spec.outputs if output.dtype not in _ROUNDED}
    large = _may_be_large(spec)
    for i in reversed(range(len(spec.nodes))):
        node = spec.nodes[i]
        magnified = node.op == "mul" and not large.isdisjoint(node.inputs)
        if i in exact or magnified or not _keeps(node):
            exact.update(node.inputs)
    return exact


def _keeps(node: Node) -> bool:
    return node.op in _KEEPS or (node.op in REDUCTIONS and REDUCTIONS[node.op].monoid.name == "sum")


def _may_be_large(spec: FusedSpec) -> set[int]:
    """Elements that may be the larger the smaller another is that they multiply."""
    large: set[int] = set()
    for i, node in enumerate(spec.nodes):
        if spaces(spec)[i] is Space.TILE and (node.op in _MAGNIFIES or not large.isdisjoint(node.inputs)):
            large.add(i)
    return large
