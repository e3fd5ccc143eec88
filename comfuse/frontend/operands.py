"""The operands of a spec: arguments in their places in the tile space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from comfuse.frontend import axes
from comfuse.frontend.axes import Axis
from comfuse.frontend.capture import Captured
from comfuse.frontend.lowered import OperandRead
from comfuse.frontend.placing import Frame, Value
from comfuse.frontend.views import Picked, dtype_of, name_of, refuse, refuse_outside
from comfuse.generator.spec import Space
from comfuse.reference import SPEC_DTYPES

if TYPE_CHECKING:
    from comfuse.frontend.emitter import Emitter


class Operands:
    """Loads each argument once for each place that it is read in.

    Attributes:
        reads: the tensor operands, in the order of the spec.
        scalars: positions of the arguments that are run-time scalars.
    """

    def __init__(self, emitter: Emitter, captured: Captured) -> None:
        self._emitter = emitter
        self._captured = captured
        self._loaded: dict[tuple[torch.fx.Node, tuple[Picked, ...], Space], Value] = {}
        self.reads: list[OperandRead] = []
        self.scalars: list[int] = []

    def load(self, node: torch.fx.Node, frame: Frame, user: torch.fx.Node) -> Value:
        """The argument ``node`` where its dimensions are those of ``frame``."""
        space, strided = self._place(node, frame, user)
        key = (node, frame.dims, space)
        if key not in self._loaded:
            self._loaded[key] = self._load(node, frame, space, strided, user)
        return self._loaded[key]

    def _load(
        self, node: torch.fx.Node, frame: Frame, space: Space, strided: bool, user: torch.fx.Node
    ) -> Value:
        position = self._captured.arguments[node]
        dtype = dtype_of(node)
        if space is Space.SCALAR:
            self.scalars.append(position)
            return Value(self._emitter.builder.load(name_of(node), space), space)
        if dtype not in SPEC_DTYPES:
            allowed = ", ".join(str(d).removeprefix("torch.") for d in SPEC_DTYPES)
            raise refuse(user, f"its input {name_of(node)} is {dtype}; allowed: {allowed}")
        self.reads.append(OperandRead(position, frame.dims, space=space))
        index = self._emitter.builder.load(name_of(node), space, SPEC_DTYPES[dtype], strided=strided)
        return Value(index, space)

    def _place(self, node: torch.fx.Node, frame: Frame, user: torch.fx.Node) -> tuple[Space, bool]:
        """The space of an operand, and whether it is strided."""
        products = self._emitter.products
        layout = [dim.walk for dim in frame.dims]
        rows = axes.atoms_along(layout, Axis.ROWS)
        columns = axes.atoms_along(layout, Axis.COLUMNS)
        if not rows and not columns:
            return self._one_number(node, frame, user), False
        if not columns:
            return Space.COLUMN, False
        if not rows:
            return Space.ROW, False
        if not axes.is_whole(columns, products.n):
            raise refuse(
                user,
                f"its input {name_of(node)} of shape {tuple(node.meta['val'].shape)} varies over the rows "
                "and over a part of the columns; expand it to whole rows before the call",
            )
        return Space.TILE, self._is_strided(node, rows, user)

    def _is_strided(self, node: torch.fx.Node, rows: list[axes.Atom], user: torch.fx.Node) -> bool:
        """Whether a tile is the same for a part of the rows."""
        products = self._emitter.products
        own = axes.joined(rows)
        missing = axes.gaps(own, products.count)
        if not missing:
            return False
        if products.batch > 1:
            return self._repeats_in_batches(node, rows, user)
        if len(own) + len(missing) <= 2:
            return True
        raise refuse(
            user,
            f"its input {name_of(node)} repeats over the rows on more than two levels; expand it before "
            "the call",
        )

    def _repeats_in_batches(self, node: torch.fx.Node, rows: list[axes.Atom], user: torch.fx.Node) -> bool:
        """Whether a tile is the same for all rows of each batch."""
        products = self._emitter.products
        batches, own = axes.batches_and_rows(rows, products.m)
        if own and not axes.is_whole(own, products.m):
            raise refuse(
                user,
                f"its input {name_of(node)} varies over a part of the {products.m} rows of each batch; "
                "expand it to all of them before the call",
            )
        if axes.levels(batches, products.batch) is None:
            raise refuse(
                user,
                f"its input {name_of(node)} varies over a part of the {products.batch} batches in a way that "
                "two strides do not walk; expand it before the call",
            )
        return not own and products.m > 1

    def _one_number(self, node: torch.fx.Node, frame: Frame, user: torch.fx.Node) -> Space:
        """A tensor of one element: a run-time scalar if the host has it, and else a vector of repeats."""
        tensor = node.meta["val"]
        on_gpu = tensor.device.type == self._captured.device
        if not on_gpu and (tensor.dim() == 0 or frame.fill is Space.SCALAR):
            return Space.SCALAR
        if frame.fill is Space.SCALAR:
            raise refuse(
                user,
                f"its input {name_of(node)} holds one number in GPU memory, which each call would have to "
                "wait for; pass a Python float",
            )
        return frame.fill

    def constant(self, node: torch.fx.Node, user: torch.fx.Node) -> float:
        """A tensor of one number that the function holds."""
        tensor = self._captured.constant(node)
        if tensor is None or tensor.numel() != 1:
            raise refuse_outside(user, node)
        return float(tensor.item())
