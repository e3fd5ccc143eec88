"""What a lowering gives: a program, and what the function's arguments and results have to do with it.

Numbers are those of the rows that the function was traced with.  ``at`` gives the same for other rows:
everything that walks along the rows is expressed by the sizes of the rows' own dimensions, those of A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from comfuse.frontend import axes
from comfuse.frontend.arguments import Arrangement, arrange
from comfuse.frontend.axes import Atom, Axis, Dim, Layout, Shape
from comfuse.frontend.views import Picked
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import FusedSpec, Space


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
class Read:
    """An argument that the region reads.

    Attributes:
        position: of the argument.
        dims: how its dimensions walk along the axes.
        cast: the dtype that it is converted to before the product, if the function converts it.
    """

    position: int
    dims: tuple[Picked, ...]
    cast: torch.dtype | None = None

    @property
    def shape(self) -> Shape:
        return tuple(dim.size for dim in self.dims)


@dataclass(frozen=True)
class OperandRead(Read):
    """A tensor operand."""

    space: Space = Space.TILE


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


@dataclass(frozen=True)
class Link:
    """One GEMM with what follows it, and where its pieces are among the arguments of the function.

    Attributes:
        spec: the program.
        b: the factors besides A; two for products side by side.
        operands: the tensor operands, in the order of the spec.
        scalars: positions of the run-time scalars, in the order of the spec.
    """

    spec: FusedSpec
    b: tuple[Read, ...]
    operands: tuple[OperandRead, ...]
    scalars: tuple[int, ...]

    def moved(self, rows: Rows, to: Rows) -> Link:
        return replace(
            self,
            b=tuple(replace(b, dims=rows.moved_picked(b.dims, to)) for b in self.b),
            operands=tuple(replace(o, dims=rows.moved_picked(o.dims, to)) for o in self.operands),
        )


@dataclass(frozen=True)
class Lowered:
    """A program, and where its pieces are among the arguments and results of the function.

    Attributes:
        links: the GEMMs in the order in which they run: one, or those of a chain.
        rows: the dimensions of the GEMMs' rows.
        sources: for each of them the position of an argument, its dimension, and what divides its size.
        lead: the dimensions of the rows as the op gets them.
        a: the A of the first link.
        results: one for each result of the function, an output of the last link.
        reads_rows: True if something is built in that depends on the number of rows.
    """

    links: tuple[Link, ...]
    rows: Rows
    sources: tuple[tuple[int, int, int], ...]
    lead: tuple[Atom, ...]
    a: Read
    results: tuple[ResultForm | OwnForm, ...]
    reads_rows: bool = False

    @cached_property
    def spec(self) -> FusedSpec | ChainSpec:
        """The spec of the one link, or the chain of several."""
        return self.last if len(self.links) == 1 else ChainSpec(tuple(link.spec for link in self.links))

    @property
    def last(self) -> FusedSpec:
        """The program whose outputs are stored."""
        return self.links[-1].spec

    @property
    def k(self) -> int:
        """Columns of A."""
        return self.links[0].spec.k

    @property
    def batched(self) -> bool:
        return self.links[0].spec.batched

    @property
    def operands(self) -> tuple[OperandRead, ...]:
        """The tensor operands of all links."""
        return tuple(operand for link in self.links for operand in link.operands)

    @property
    def scalars(self) -> tuple[int, ...]:
        return tuple(position for link in self.links for position in link.scalars)

    @property
    def reads(self) -> tuple[Read, ...]:
        """All tensors, in the order in which the op takes them."""
        return (self.a, *(read for link in self.links for read in (*link.b, *link.operands)))

    @property
    def lead_shape(self) -> Shape:
        return tuple(atom.size for atom in self.lead)

    @property
    def batch(self) -> int:
        return self.lead[0].size if self.batched else 1

    @property
    def m(self) -> int:
        """The rows of a batch."""
        return self.lead[1].size if self.batched else self.rows.count

    def at(self, rows: Rows) -> Lowered:
        """The same for other rows."""
        old = self.rows
        return replace(
            self,
            links=tuple(link.moved(old, rows) for link in self.links),
            rows=rows,
            lead=tuple(old.moved(atom, rows) for atom in self.lead),
            a=replace(self.a, dims=old.moved_picked(self.a.dims, rows)),
            results=tuple(form.moved(old, rows) for form in self.results),
        )

    def with_specs(self, change: Callable[[FusedSpec], FusedSpec]) -> Lowered:
        return replace(self, links=tuple(replace(link, spec=change(link.spec)) for link in self.links))

    # --- how tensors are arranged for the op --------------------------------------------------------

    def arrangements(self) -> list[Arrangement]:
        """Of each of ``reads``."""
        found = [self._of_a()]
        for link in self.links:
            found += (self._of_b(b, link.spec) for b in link.b)
            found += (self._of_operand(operand, link.spec.n) for operand in link.operands)
        return found

    def _of_a(self) -> Arrangement:
        extents = [(Axis.ROWS, self.rows.count), (Axis.INNER, self.k)]
        return arrange(self.a.dims, extents, (*self.lead_shape, self.k))

    def _of_b(self, b: Read, spec: FusedSpec) -> Arrangement:
        n, k = spec.n, spec.k
        extents = [(Axis.COLUMNS, n), (Axis.INNER, k)]
        if not axes.atoms_along([dim.walk for dim in b.dims], Axis.ROWS):
            return arrange(b.dims, extents, (n, k))
        by_batch = [replace(dim, walk=self._by_batch(dim.walk)) for dim in b.dims]
        return arrange(by_batch, [(Axis.ROWS, self.batch), *extents], (self.batch, n, k))

    def _by_batch(self, walk: Dim) -> Dim:
        m = max(self.m, 1)
        return tuple(
            Atom(atom.axis, atom.stride // m, atom.size) if atom.axis is Axis.ROWS else atom for atom in walk
        )

    def _of_operand(self, operand: OperandRead, n: int) -> Arrangement:
        count = self.rows.count
        if operand.space is Space.ROW:
            return arrange(operand.dims, [(Axis.COLUMNS, n)], (n,))
        if operand.space is Space.COLUMN:
            return arrange(operand.dims, [(Axis.ROWS, count)], self.lead_shape)
        shared = self.batched and not self._is_batched(operand)
        if shared:
            return arrange(operand.dims, [(Axis.ROWS, self.m), (Axis.COLUMNS, n)], (self.m, n))
        return arrange(operand.dims, [(Axis.ROWS, count), (Axis.COLUMNS, n)], (*self.lead_shape, n))

    def _is_batched(self, operand: OperandRead) -> bool:
        atoms = axes.atoms_along([dim.walk for dim in operand.dims], Axis.ROWS)
        return any(atom.stride * atom.size > self.m for atom in atoms)

    # --- how results lie in outputs -----------------------------------------------------------------

    def arrangement_in(self, dims: Sequence[Picked]) -> Arrangement:
        """From a result to the rows (..., N) of an output that lies in it."""
        extents = [(Axis.ROWS, self.rows.count), (Axis.COLUMNS, self.last.n)]
        return arrange(dims, extents, (*self.lead_shape, self.last.n))

    def atoms_of(self, form: ResultForm) -> tuple[Shape, Shape, int]:
        """Size and stride of each walk of a result in its output, and where it starts."""
        atoms = [atom for dim in form.layout for atom in dim]
        by_atom = replace(form, layout=tuple((atom,) for atom in atoms))
        return (tuple(atom.size for atom in atoms), *self.strides_of(by_atom))

    def strides_of(self, form: ResultForm) -> tuple[Shape, int]:
        """The strides of a result in its output, and where it starts."""
        found = storage_strides(form, self.last.n, self.last.group, max(self.lead_shape[-1], 1))
        assert found is not None, form
        return found

    def is_reshaped(self, form: ResultForm | OwnForm) -> bool:
        """Whether a result is an output of the op, all of it, in another shape of the same order."""
        if isinstance(form, OwnForm) or form.copied or form.heads is not None:
            return False
        strides, start = self.strides_of(form)
        is_whole = start == 0 and math.prod(form.shape) == self._output_size(form.space)
        return is_whole and axes.same_strides(strides, axes.row_major(form.shape), form.shape)

    def _output_size(self, space: Space) -> int:
        """The elements of an output of the op; 0 where each batch has its own."""
        rows, n = self.rows.count, self.last.n
        by_batch = self.batched and space in (Space.ROW, Space.SCALAR)
        sizes = {
            Space.TILE: rows * n,
            Space.GROUP: rows * (n // (self.last.group or n)),
            Space.COLUMN: rows,
            Space.ROW: n,
            Space.SCALAR: 1,
        }
        return 0 if by_batch else sizes[space]
