"""The values of a lowering, and where they lie in the tile space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comfuse.frontend import axes
from comfuse.frontend.axes import Atom, Axis, Dim, Layout, Shape
from comfuse.frontend.views import Picked, picked
from comfuse.generator.spec import Space


@dataclass(frozen=True)
class Value:
    """A node of the spec."""

    node: int
    space: Space


@dataclass(frozen=True)
class Term:
    """What a node of the graph is: a value, and how the graph's tensor walks over it.

    Attributes:
        values: one value; or two where the columns are those of two products side by side, one for each.
        layout: the walk of each of the tensor's dimensions.  Over two values the columns count 2 N.
        row, column: the first row and column of the walk.
        part: the axes of which it visits a part.
    """

    values: tuple[Value, ...]
    layout: Layout
    row: int = 0
    column: int = 0
    part: frozenset[Axis] = frozenset()

    @property
    def is_wide(self) -> bool:
        return len(self.values) == 2

    @property
    def space(self) -> Space:
        return self.values[0].space


@dataclass(frozen=True)
class Joined:
    """Values side by side in one tensor, which can be returned and nothing else.

    ``parts``: each with where its dimensions lie in the tensor.
    """

    parts: tuple[tuple[Term, tuple[Picked, ...]], ...]


# Of operators with several results, with None for one that a kernel does not have.
Result = Term | Joined | tuple[Term | None, ...]


@dataclass(frozen=True)
class Frame:
    """The layout that the inputs of a node broadcast to.

    Attributes:
        layout: as the graph has it.
        dims: the part of it that is meant, walking along the columns of one product.
        half: None, or which of two values side by side is meant.
        fill: the space of a vector that repeats one number for all of it; SCALAR: it is one number itself.
    """

    layout: Layout
    dims: tuple[Picked, ...]
    half: int | None = None
    fill: Space = Space.SCALAR

    @classmethod
    def of(cls, layout: Layout, dims: tuple[Picked, ...] | None = None, half: int | None = None) -> Frame:
        """The frame of a node's inputs."""
        dims = picked(layout) if dims is None else dims
        rows, columns = (axes.atoms_along((d.walk for d in dims), axis) for axis in (Axis.ROWS, Axis.COLUMNS))
        by_group = bool(columns) and columns[-1].stride > 1
        if rows and (by_group or not columns):
            return cls(layout, dims, half, Space.COLUMN)
        return cls(layout, dims, half, Space.ROW if columns else Space.SCALAR)

    def narrowed(self, dims: tuple[Picked, ...]) -> Frame:
        """The place of one of the inputs."""
        return Frame(tuple(dim.walk for dim in dims), dims, self.half, self.fill)


def frame_layout(
    shape: Shape, terms: Sequence[Term], varying: Sequence[Shape], extents: dict[Axis, int]
) -> Layout | str:
    """The layout that a node's inputs broadcast to, or why they do not line up.

    Args:
        shape: of the node's result.
        terms: the inputs that depend on the GEMM.
        varying: the shapes of those that do not, tensors of one repeated number left out.
        extents: rows and columns of the GEMM.
    """
    rank = len(shape)
    layout: list[Dim] = []
    for d, size in enumerate(shape):
        found = [dim for t in terms if (dim := axes.aligned_layout(t.layout, rank)[d])]
        dim = axes.merged(found) if found else axes.repeated(size)
        if dim is None:
            return _misfit(shape, terms)
        layout.append(dim)
    if any(axes.gaps(axes.atoms_along(layout, axis), extent) is None for axis, extent in extents.items()):
        return _misfit(shape, terms)
    padded = [axes.aligned(s, rank) for s in varying]
    unknown = [d for d in range(rank) if any(s[d] > 1 for s in padded)]
    filled = axes.fill(tuple(layout), unknown, extents)
    if filled is None:
        return f"{_misfit(shape, terms)}: dimensions {unknown} are neither rows nor columns"
    return filled


def _misfit(shape: Shape, terms: Sequence[Term]) -> str:
    shapes = " and ".join(str(axes.shape_of(t.layout)) for t in terms)
    dropped = any(t.space in (Space.COLUMN, Space.GROUP) and len(t.layout) < len(shape) for t in terms)
    hint = "; keepdim=True in the reduction keeps it aligned" if dropped else ""
    return (
        f"inputs of shape {shapes} do not line up with the rows and columns of the GEMM's result when they "
        f"are broadcast to {shape}{hint}"
    )


# --- two products side by side ---------------------------------------------------------------------------


def halved(layout: Layout, interleaved: bool, n: int) -> Layout | None:
    """The walk along the columns of one product, of a layout that picks one of two.

    None if a dimension runs over both.
    """
    dims = [_half(Picked(axes.size_of(dim), dim), 0, interleaved, n) for dim in layout]
    if any(dim is None or not dim.is_whole for dim in dims):
        return None
    return tuple(dim.walk for dim in dims if dim is not None)


def half_of(dims: Sequence[Picked], half: int, interleaved: bool, n: int) -> tuple[Picked, ...] | None:
    """The dimensions of a tensor over both products, cut down to one.

    None if no start and step picks it.
    """
    result = tuple(_half(dim, half, interleaved, n) for dim in dims)
    return None if any(dim is None for dim in result) else result  # type: ignore[return-value]


def _half(dim: Picked, half: int, interleaved: bool, n: int) -> Picked | None:
    atoms = axes.split_at((dim.walk,), Axis.COLUMNS, 2 if interleaved else n)
    pair = Atom(Axis.COLUMNS, 1, 2) if interleaved else Atom(Axis.COLUMNS, n, 2)
    rest = []
    for atom in atoms:
        if atom != pair and atom.axis is Axis.COLUMNS and interleaved:
            if atom.stride % 2:
                return None
            atom = Atom(atom.axis, atom.stride // 2, atom.size)
        elif atom != pair and atom.axis is Axis.COLUMNS and atom.stride * atom.size > n:
            return None
        rest.append(atom)
    if pair not in atoms:
        return Picked(dim.size, axes.joined(rest), dim.start, dim.step)
    place = atoms.index(pair)
    inner = axes.size_of(atoms[place + 1 :])
    walk = axes.joined(rest[:place] + rest[place + 1 :])
    if axes.size_of(atoms[:place]) == 1:
        return Picked(dim.size, walk, dim.start + dim.step * half * inner, dim.step)
    if inner == 1:
        return Picked(dim.size, walk, dim.start + dim.step * half, 2 * dim.step)
    return None
