"""A short way to write specs by hand: the catalogue, the tests and the front end use it."""

from __future__ import annotations

from comfuse.generator.spec import DType, FusedSpec, Node, Operand, Output, Space


class SpecBuilder:
    """Collects operands, nodes and outputs; every method returns the index of the node it added.

    Example::

        b = SpecBuilder(n=1024, k=1024, dtype=DType.BF16)
        x = b.op("add", b.gemm(), b.load("bias", Space.ROW, DType.BF16), name="x")
        b.output("y", b.op("gelu", x), DType.BF16)
        spec = b.spec()
    """

    def __init__(self, n: int, k: int, dtype: DType) -> None:
        self.n = n
        self.k = k
        self.dtype = dtype
        self._operands: list[Operand] = []
        self._nodes: list[Node] = []
        self._outputs: list[Output] = []

    def gemm(self, name: str = "acc") -> int:
        """The GEMM's result."""
        return self._add(Node(name, "gemm"))

    def load(self, name: str, space: Space, dtype: DType = DType.FP32) -> int:
        """A new operand, and the node that reads it."""
        self._operands.append(Operand(name, space, dtype))
        return self._add(Node(name, "load", operand=len(self._operands) - 1))

    def const(self, value: float, name: str | None = None) -> int:
        return self._add(Node(name or f"c{len(self._nodes)}", "const", value=float(value)))

    def op(self, op: str, *inputs: int, name: str | None = None) -> int:
        """An elementwise op or a row reduction."""
        return self._add(Node(name or f"{op}{len(self._nodes)}", op, inputs))

    def field(self, reduction: int, field: str, name: str | None = None) -> int:
        """One field of a reduction with several."""
        return self._add(Node(name or field, "field", (reduction,), field=field))

    def output(self, name: str, node: int, dtype: DType) -> None:
        self._outputs.append(Output(name, node, dtype))

    def spec(self) -> FusedSpec:
        return FusedSpec(
            self.n, self.k, self.dtype, tuple(self._operands), tuple(self._nodes), tuple(self._outputs)
        )

    def _add(self, node: Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1
