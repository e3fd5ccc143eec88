"""The rows of a GEMM, and how the results of a function lie in the outputs that the op gives.

Numbers are those of the rows that the function was traced with.  ``moved`` gives the same for other rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from comfuse.frontend import axes
from comfuse.frontend.axes import Atom, Axis, Dim, Layout, Shape
from comfuse.frontend.views import Picked
from comfuse.generator.spec import Space


@dataclass(frozen=True)
class Rows:
    """The dimensions of the GEMM's rows, from the outermost, batches included."""

    sizes: Shape

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    def span(self, atom: Atom) -> tuple[int, int] | None:
        """Which neighbouring dimensions the atom walks over: the first, and the one behind the last."""
        end = next(
            (j for j in range(len(self.sizes), -1, -1) if math.prod(self.sizes[j:]) == atom.stride), None
        )
        if end is None:
            return None
        start = next((i for i in range(end, -1, -1) if math.prod(self.sizes[i:end]) == atom.size), None)
        return None if start is None else (start, end)

    def moved(self, atom: Atom, to: Rows) -> Atom:
        """The same walk over other rows; the atom itself where it does not walk over whole dimensions."""
        span = self.span(atom) if atom.axis is Axis.ROWS else None
        if span is None:
            return atom
        start, end = span
        return Atom(atom.axis, math.prod(to.sizes[end:]), math.prod(to.sizes[start:end]))

    def moved_dim(self, dim: Dim, to: Rows) -> Dim:
        return tuple(self.moved(atom, to) for atom in dim)

    def moved_picked(self, dims: Sequence[Picked], to: Rows) -> tuple[Picked, ...]:
        result = []
        for dim in dims:
            walk = self.moved_dim(dim.walk, to)
            size = axes.size_of(walk) if dim.is_whole else dim.size
            result.append(replace(dim, walk=walk, size=size))
        return tuple(result)


@dataclass(frozen=True)
class ResultForm:
    """How one result of the function is a view of one of the spec's outputs, as the op allocates them.

    Attributes:
        index: of the output.
        space: of the output.
        layout, row, column: the result's walk, as of :class:`~.placing.Term`.
        heads: D, where the output is (..., N / D, S, D).
        copied: it is a contiguous copy of the view, since no kernel stores it in that order.
    """

    index: int
    space: Space
    layout: Layout
    row: int = 0
    column: int = 0
    heads: int | None = None
    copied: bool = False

    @property
    def shape(self) -> Shape:
        return axes.shape_of(self.layout)

    def at_index(self, index: int) -> ResultForm:
        return replace(self, index=index)

    def moved(self, rows: Rows, to: Rows) -> ResultForm:
        return replace(self, layout=tuple(rows.moved_dim(dim, to) for dim in self.layout))


@dataclass(frozen=True)
class OwnForm:
    """A result that is a contiguous tensor of its own, which the kernel writes into.

    Attributes:
        parts: index of the output, and where it lies in the result, for each output that makes up the result.
    """

    parts: tuple[tuple[int, tuple[Picked, ...]], ...]

    @property
    def shape(self) -> Shape:
        return tuple(dim.size for dim in self.parts[0][1])

    def moved(self, rows: Rows, to: Rows) -> OwnForm:
        return OwnForm(tuple((index, rows.moved_picked(dims, to)) for index, dims in self.parts))


def storage_strides(form: ResultForm, n: int, group: int | None, inside: int) -> tuple[Shape, int] | None:
    """The strides of a result's dimensions in its contiguous output, and where it starts there.

    ``inside`` are the rows S of a head-split output.  None if a dimension has no single stride.
    """

    def place(axis: Axis | None, index: int) -> int:
        if axis is None or form.space is Space.SCALAR:
            return 0
        if form.space is Space.GROUP:
            assert group is not None
            return index * (n // group) if axis is Axis.ROWS else index // group
        if form.space in (Space.ROW, Space.COLUMN):
            return index if (axis is Axis.ROWS) == (form.space is Space.COLUMN) else 0
        if form.heads is None:
            return index * n if axis is Axis.ROWS else index
        block, rest = divmod(index, inside if axis is Axis.ROWS else form.heads)
        if axis is Axis.ROWS:
            return block * inside * n + rest * form.heads
        return block * inside * form.heads + rest

    strides = []
    for dim in form.layout:
        stride, expected = 0, None
        for atom in reversed(dim):
            own = place(atom.axis, atom.stride)
            if expected not in (None, own) or _is_cut(form, atom, inside):
                return None
            stride = own if expected is None else stride
            expected = own * atom.size
        strides.append(stride)
    return tuple(strides), place(Axis.ROWS, form.row) + place(Axis.COLUMNS, form.column)


def _is_cut(form: ResultForm, atom: Atom, inside: int) -> bool:
    """Whether a walk crosses from one block of a head-split output into the next."""
    if form.heads is None or atom.axis is None:
        return False
    block = inside if atom.axis is Axis.ROWS else form.heads
    return atom.stride < block < atom.stride * atom.size
