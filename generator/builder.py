"""A short way to write specs by hand: the catalogue, the tests and the front end use it."""

from __future__ import annotations

from comfuse.generator.spec import DType, FusedSpec, Major, Node, Operand, Output, Pair, Space


class SpecBuilder:
    """Collects operands, nodes and outputs; every method returns the index of the node it added.

    Example::

        b = SpecBuilder(n=1024, k=1024, dtype=DType.BF16)
        x = b.op("add", b.gemm(), b.load("bias", Space.ROW, DType.BF16), name="x")
        b.output("y", b.op("gelu", x), DType.BF16)
        spec = b.spec()
    """

    def __init__(
        self,
        n: int,
        k: int,
        dtype: DType,
        products: int = 1,
        a_major: Major = Major.K,
        b_major: Major = Major.K,
        batched: bool = False,
        group: int | None = None,
        second: Pair | None = None,
    ) -> None:
        self.n = n
        self.k = k
        self.dtype = dtype
        self.products = products
        self.a_major = a_major
        self.b_major = b_major
        self.batched = batched
        self.group = group
        self.second = second
        self._operands: list[Operand] = []
        self._nodes: list[Node] = []
        self._outputs: list[Output] = []

    def gemm(self, product: int = 0, name: str | None = None) -> int:
        """The result of a GEMM: of the first B, or of the second."""
        default = "acc" if product == 0 else f"acc{product}"
        return self._add(Node(name or default, "gemm", operand=product or None))

    def load(self, name: str, space: Space, dtype: DType = DType.FP32, *, strided: bool = False) -> int:
        """A new operand, and the node that reads it."""
        self._operands.append(Operand(name, space, dtype, strided))
        return self._add(Node(name, "load", operand=len(self._operands) - 1))

    def const(self, value: float, name: str | None = None) -> int:
        return self._add(Node(name or f"c{len(self._nodes)}", "const", value=float(value)))

    def row_index(self, name: str = "m") -> int:
        """The row, counted within the batch: 0 .. M - 1."""
        return self._add(Node(name, "row_index"))

    def column_index(self, name: str = "n") -> int:
        """The column: 0 .. N - 1."""
        return self._add(Node(name, "column_index"))

    def row_count(self, name: str = "row_count") -> int:
        """M, the rows of a batch."""
        return self._add(Node(name, "row_count"))

    def op(self, op: str, *inputs: int, name: str | None = None) -> int:
        """An elementwise op or a reduction."""
        return self._add(Node(name or f"{op}{len(self._nodes)}", op, inputs))

    def field(self, reduction: int, field: str, name: str | None = None) -> int:
        """One field of a reduction with several."""
        return self._add(Node(name or field, "field", (reduction,), field=field))

    def output(
        self, name: str, node: int, dtype: DType, *, strided: bool = False, heads: int | None = None
    ) -> None:
        """Stores a node.  A head-split output is always strided."""
        self._outputs.append(Output(name, node, dtype, strided or heads is not None, heads))

    def spec(self) -> FusedSpec:
        return FusedSpec(
            self.n,
            self.k,
            self.dtype,
            tuple(self._operands),
            tuple(self._nodes),
            tuple(self._outputs),
            self.products,
            self.a_major,
            self.b_major,
            self.batched,
            self.group,
            self.second,
        )

    def _add(self, node: Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1
