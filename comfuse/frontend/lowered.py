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
from comfuse.frontend.axes import Atom, Axis, Dim, Shape
from comfuse.frontend.forms import OwnForm, ResultForm, Rows, storage_strides
from comfuse.frontend.views import Picked
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import FusedSpec, Space


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
        lead, levels = self.lead_shape, None
        if self.batched and count > 0:
            rows = axes.atoms_along([dim.walk for dim in operand.dims], Axis.ROWS)
            batches, _ = axes.batches_and_rows(rows, self.m)
            if not batches and operand.space is Space.TILE:
                return arrange(operand.dims, [(Axis.ROWS, self.m), (Axis.COLUMNS, n)], (self.m, n))
            if batches and axes.gaps(batches, self.batch):  # it varies over a part of them
                levels = axes.levels(batches, self.batch)
        if levels is not None:
            lead = (*levels, self.m)
        if operand.space is Space.COLUMN:
            return arrange(operand.dims, [(Axis.ROWS, count)], lead if levels is None else (*lead, 1))
        return arrange(operand.dims, [(Axis.ROWS, count), (Axis.COLUMNS, n)], (*lead, n))

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
