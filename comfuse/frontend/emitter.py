"""Writes nodes of a spec, each with the space that its value varies over."""

from __future__ import annotations

import torch

from comfuse.frontend.axes import Atom, Axis
from comfuse.frontend.gemm import Products
from comfuse.frontend.placing import Frame, Value
from comfuse.frontend.views import refuse
from comfuse.generator import ops
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, Space


class Emitter:
    """A spec under construction.

    Attributes:
        builder: the spec so far; what it says of the GEMM is filled in at the end.
        products: the GEMM.
        reduced: axis, monoid and input of each reduction.
        current: the node of the graph that is being lowered.
        origins: the one that each node of the spec was emitted for.
    """

    def __init__(self, products: Products) -> None:
        self.builder = SpecBuilder(1, 1, DType.BF16)
        self.products = products
        self.reduced: dict[int, tuple[str, str, Value]] = {}
        self.current: torch.fx.Node | None = None
        self.origins: dict[int, torch.fx.Node] = {}
        self._constants: dict[str, Value] = {}
        self._indices: dict[str, Value] = {}

    @property
    def n(self) -> int:
        """Columns of a product."""
        return self.products.n

    def emit(self, op: str, *inputs: Value, name: str | None = None) -> Value:
        """An elementwise node."""
        assert op in ops.ELEMENTWISE, op
        space = inputs[0].space
        for v in inputs[1:]:
            space = space.join(v.space)
        return self._noted(self.builder.op(op, *(v.node for v in inputs), name=name), space)

    def reduce(self, axis: str, monoid: str, x: Value, name: str | None = None) -> Value:
        """A reduction of a TILE."""
        reduction = ops.REDUCTIONS[f"{axis}_{monoid}"]
        value = self._noted(self.builder.op(reduction.name, x.node, name=name), reduction.space)
        self.reduced[value.node] = (axis, monoid, x)
        return value

    def _noted(self, node: int, space: Space) -> Value:
        if self.current is not None:
            self.origins[node] = self.current
        return Value(node, space)

    def field(self, reduction: Value, name: str) -> Value:
        return Value(self.builder.field(reduction.node, name), reduction.space)

    def const(self, value: float) -> Value:
        value = float(value)
        if value.hex() not in self._constants:
            self._constants[value.hex()] = Value(self.builder.const(value), Space.SCALAR)
        return self._constants[value.hex()]

    def index(self, name: str) -> Value:
        """``row_index``, ``column_index`` or ``row_count``."""
        if name not in self._indices:
            space = {"row_index": Space.COLUMN, "column_index": Space.ROW, "row_count": Space.SCALAR}[name]
            self._indices[name] = Value(getattr(self.builder, name)(), space)
        return self._indices[name]

    def position(self, frame: Frame, dim: int, user: torch.fx.Node) -> Value:
        """The index along a dimension of the frame."""
        picked = frame.dims[dim]
        index: Value | None = None
        inner = 1
        for atom in reversed(picked.walk):
            digit = self._digit(atom, user)
            if inner != 1:
                digit = self.emit("mul", digit, self.const(inner))
            index = digit if index is None else self.emit("add", digit, index)
            inner *= atom.size
        if index is None:
            return self.const(picked.start)
        if picked.step != 1:
            index = self.emit("mul", index, self.const(picked.step))
        return index if picked.start == 0 else self.emit("add", index, self.const(picked.start))

    def _digit(self, atom: Atom, user: torch.fx.Node) -> Value:
        if atom.axis is None:
            raise refuse(user, "it needs the position along a dimension that only repeats a value")
        rows = atom.axis is Axis.ROWS
        extent = self.products.m if rows else self.n
        span = atom.stride * atom.size
        if span > extent:
            raise refuse(user, "it needs the number of the batch, which a kernel does not know")
        base = self.index("row_index" if rows else "column_index")
        digit = base if atom.stride == 1 else self.quotient(base, atom.stride)
        if span == extent:
            return digit
        whole = self.quotient(base, span)
        return self.emit("sub", digit, self.emit("mul", whole, self.const(atom.size)))

    def quotient(self, index: Value, divisor: int) -> Value:
        """``index // divisor``, taken half a place further, so that no rounding crosses an integer."""
        middle = self.emit("add", index, self.const(0.5))
        return self.emit("floor", self.emit("mul", middle, self.const(1.0 / divisor)))
