"""Programs in readable mathematics, for the comment at the head of a kernel and for ``explain``."""

from __future__ import annotations

from comfuse.generator.chain import ChainSpec
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.spec import FusedSpec, Node

_PRECEDENCE = {"==": 1, "!=": 1, "<": 2, "<=": 2, ">": 2, ">=": 2, "+": 3, "-": 3, "*": 4, "/": 4}
_ATOM = 9
_FIELDS = {"lse": "logsumexp"}  # where the name says too little
_LEAVES = {"row_index": "row", "column_index": "column", "row_count": "M"}


def describe(spec: FusedSpec) -> list[str]:
    """One line an output, before it a line for each value that is read more than once.

    For example ``x = a @ b.T + bias`` and ``y = (x - mean(x)) * rsqrt(var(x) + eps)``.  Reductions run along
    rows unless their name says otherwise; ``row``, ``column`` and ``M`` are indices and their number.
    """
    return _described(_Writer(spec))


def describe_chain(chain: ChainSpec) -> list[str]:
    """The lines of each link, as of :func:`describe`.

    Factors are numbered through, and what a link hands on has its name: ``h = relu(a @ w0.T)``, then
    ``y = h @ w1.T``.
    """
    lines: list[str] = []
    a, factor = "a", 0
    for link in chain.links:
        lines += _described(_Writer(link, a, factor))
        a, factor = link.outputs[0].name, factor + link.products
    return lines


def _described(writer: _Writer) -> list[str]:
    spec = writer.spec
    lines = [f"{writer.names[i]} = {writer.definition(i)}" for i in sorted(writer.names)]
    lines += [f"{o.name} = {writer.text(o.node)[0]}" for o in spec.outputs if not writer.says(o.name, o.node)]
    lines += [f"{o.name} in heads of {o.heads} columns" for o in spec.outputs if o.heads is not None]
    return lines


class _Writer:
    """``a`` is the name of A; ``factor`` the number of the first B among a chain's, None outside of one."""

    def __init__(self, spec: FusedSpec, a: str = "a", factor: int | None = None) -> None:
        self.spec = spec
        self.a = a
        self.factor = factor
        self.names = self._shared_values()

    def _shared_values(self) -> dict[int, str]:
        """Names for the computed values with several readers; an output counts as one."""
        readers = [0] * len(self.spec.nodes)
        for i in [i for node in self.spec.nodes for i in node.inputs] + [o.node for o in self.spec.outputs]:
            readers[i] += 1
        return {
            i: node.name
            for i, node in enumerate(self.spec.nodes)
            if readers[i] > 1 and node.op in ELEMENTWISE
        }

    def says(self, name: str, node: int) -> bool:
        """True if the line of a shared value says all of an output."""
        return self.names.get(node) == name

    def text(self, i: int) -> tuple[str, int]:
        """An expression and its precedence."""
        if i in self.names:
            return self.names[i], _ATOM
        return self._expression(i)

    def definition(self, i: int) -> str:
        return self._expression(i)[0]

    def _expression(self, i: int) -> tuple[str, int]:
        node = self.spec.nodes[i]
        if node.op == "gemm":
            return self._product(node), 4
        if node.op == "load":
            return node.name, _ATOM
        if node.op in _LEAVES:
            return _LEAVES[node.op], _ATOM
        if node.op == "const":
            value = node.value if node.value is not None else 0.0
            return f"{value:.9g}", _ATOM if value >= 0 else 3
        if node.op == "field":
            field = node.field or ""
            return self._reduction(self.spec.nodes[node.inputs[0]], _FIELDS.get(field, field)), _ATOM
        if node.op in REDUCTIONS:
            return self._reduction(node, REDUCTIONS[node.op].monoid.name), _ATOM
        infix = ELEMENTWISE[node.op].infix
        if infix is None:
            return f"{node.op}({', '.join(self.text(j)[0] for j in node.inputs)})", _ATOM
        own = _PRECEDENCE[infix]
        left, right = (self.text(j) for j in node.inputs)
        left_text = left[0] if left[1] >= own else f"({left[0]})"
        right_text = right[0] if right[1] > own else f"({right[0]})"
        return f"{left_text} {infix} {right_text}", own

    def _product(self, node: Node) -> str:
        """B is (N, K) whatever its layout, one for each batch in a batched program."""
        if self.factor is not None:
            b = f"w{self.factor + node.product}"
        else:
            b = "b" if self.spec.products == 1 else f"b{node.product}"
        a = self.a if self.spec.second is None else f"{self.a}{node.product}"
        return f"{a} @ {b}.mT" if self.spec.batched else f"{a} @ {b}.T"

    def _reduction(self, node: Node, what: str) -> str:
        """``mean(x)`` of a row; ``col_sum(x)`` of a column, ``group_max(x)``, ``full_sum(x)``."""
        axis = REDUCTIONS[node.op].axis
        prefix = "" if axis == "row" else f"{axis}_"
        return f"{prefix}{what}({self.text(node.inputs[0])[0]})"
