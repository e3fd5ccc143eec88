"""Where the elements of a tensor lie in the tile space (M, N).

A tensor of the graph is a view of the tile space.  Each of its dimensions walks along the rows, along the
columns, along both, or repeats the same elements; :class:`Atom` is one such walk.  A row of a batch b is row
``b * M + m``: the batch is a part of the rows.  Reshapes split and join atoms, permutations reorder
dimensions, and two values line up where their dimensions have the same atoms, so that rows and columns never
mix up, even where M = N.

The factors of the GEMM have the third axis K in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import permutations


class Axis(Enum):
    """The axes of the GEMM."""

    ROWS = "rows"
    COLUMNS = "columns"
    INNER = "K"


@dataclass(frozen=True)
class Atom:
    """``size`` steps of ``stride`` along an axis; ``axis`` None: nothing changes along it."""

    axis: Axis | None
    stride: int
    size: int


Dim = tuple[Atom, ...]  # from the outermost; () where the size is 1
Layout = tuple[Dim, ...]
Shape = tuple[int, ...]


def whole(axis: Axis, size: int) -> Dim:
    """A dimension that is all of an axis."""
    return joined([Atom(axis, 1, size)])


def repeated(size: int) -> Dim:
    return joined([Atom(None, 0, size)])


def joined(atoms: Iterable[Atom]) -> Dim:
    """The atoms with neighbours that are one walk made one."""
    result: list[Atom] = []
    for atom in atoms:
        if atom.size == 1:
            continue
        last = result[-1] if result else None
        if last is not None and last.axis is atom.axis and last.stride == atom.stride * atom.size:
            result[-1] = Atom(atom.axis, atom.stride, last.size * atom.size)
        else:
            result.append(atom)
    return tuple(result)


def size_of(dim: Iterable[Atom]) -> int:
    return math.prod(atom.size for atom in dim)


def shape_of(layout: Layout) -> Shape:
    return tuple(size_of(dim) for dim in layout)


def atoms_along(layout: Iterable[Dim], axis: Axis) -> list[Atom]:
    """The atoms of an axis, the one with the longest stride first."""
    found = [atom for dim in layout for atom in dim if atom.axis is axis]
    return sorted(found, key=lambda atom: -atom.stride)


def is_whole(atoms: Sequence[Atom], size: int) -> bool:
    """True if the atoms, by falling stride, together visit every place of an axis of ``size`` once."""
    return gaps(atoms, size) == []


def gaps(atoms: Sequence[Atom], size: int) -> list[Atom] | None:
    """What is missing between the atoms, by falling stride, for a walk over an axis of ``size``.

    None if no atoms could complete them.
    """
    found = []
    rest = size  # the places below the last atom
    for atom in atoms:
        span = atom.stride * atom.size
        if span == 0:  # of no rows
            rest = atom.stride if size == 0 else -1
            continue
        if rest < 0 or rest % span:
            return None
        if rest != span:
            found.append(Atom(atom.axis, span, rest // span))
        rest = atom.stride
    if rest != 1:
        axis = atoms[-1].axis if atoms else None
        found.append(Atom(axis, 1, rest))
    return found


def batches_and_rows(rows: Sequence[Atom], m: int) -> tuple[Dim, Dim]:
    """Walks along the rows of batches of ``m`` rows, by falling stride: among the batches, whose strides then
    count batches, and within one of them.
    """
    cut = split_at([(atom,) for atom in rows], Axis.ROWS, m)
    batches = [Atom(atom.axis, atom.stride // m, atom.size) for atom in cut if atom.stride % m == 0]
    return joined(batches), joined(atom for atom in cut if atom.stride % m)


def levels(walk: Sequence[Atom], size: int) -> tuple[int, int] | None:
    """The sizes of the outer and the inner part of an axis of ``size``, of which a walk, by falling stride,
    repeats one, both or none; (1, size) where it is all of the axis.  None if there is no such cut.
    """
    missing = gaps(walk, size)
    if missing is None or len(walk) + len(missing) > 2:
        return None
    inner = next(atom.size for atom in (*walk, *missing, Atom(None, 1, 1)) if atom.stride == 1)
    return size // max(inner, 1), inner


def reshaped(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """The same elements in the same order as a tensor of another shape.

    None where a dimension of the new shape would hold a part of a walk that no stride describes.
    """
    pending = [*joined(atom for dim in layout for atom in dim)]
    if 0 in shape:
        return _reshaped_empty(pending, shape)
    result: list[Dim] = []
    for size in reversed(shape):
        dim = _take(pending, size)
        if dim is None:
            return None
        result.insert(0, dim)
    return tuple(result) if not pending else None


def _take(pending: list[Atom], size: int) -> Dim | None:
    """Takes a dimension of ``size`` from the inner end."""
    taken: list[Atom] = []
    while size > 1:
        if not pending:
            return None
        atom = pending.pop()
        if atom.size == 0:
            return None
        if size % atom.size == 0:
            taken.insert(0, atom)
            size //= atom.size
        elif atom.size % size == 0:  # the inner part of it
            taken.insert(0, Atom(atom.axis, atom.stride, size))
            pending.append(Atom(atom.axis, atom.stride * size, atom.size // size))
            size = 1
        else:
            return None
    return joined(taken)


def _reshaped_empty(pending: list[Atom], shape: Sequence[int]) -> Layout | None:
    """The same where there are no elements: every dimension in front of the last empty walk is along it."""
    result: list[Dim] = []
    for size in reversed(shape):
        last = pending[-1] if pending else None
        if last is None:
            return None
        if last.size == 0:
            result.insert(0, (Atom(last.axis, last.stride, size),))
            continue
        dim = _take(pending, size)
        if dim is None:
            return None
        result.insert(0, dim)
    return tuple(result)


def row_major(shape: Sequence[int]) -> Shape:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def same_strides(strides: Sequence[int], others: Sequence[int], shape: Sequence[int]) -> bool:
    """True if two tensors of this shape lie alike."""
    return all(a == b or size == 1 for a, b, size in zip(strides, others, shape, strict=True))


def split_at(layout: Iterable[Dim], axis: Axis, stride: int) -> list[Atom]:
    """All atoms in order, those of ``axis`` that reach over ``stride`` cut in two there."""
    result = []
    for dim in layout:
        for atom in dim:
            span = atom.stride * atom.size
            if atom.axis is axis and atom.stride < stride < span and stride % atom.stride == 0:
                inner = stride // atom.stride
                if atom.size % inner == 0:
                    result += [Atom(axis, stride, atom.size // inner), Atom(axis, atom.stride, inner)]
                    continue
            result.append(atom)
    return result


def aligned(shape: Sequence[int], rank: int) -> Shape:
    """The shape with leading ones, as torch broadcasts it to ``rank`` dimensions."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def aligned_layout(layout: Layout, rank: int) -> Layout:
    return ((),) * (rank - len(layout)) + layout


def merged(dims: Sequence[Dim]) -> Dim | None:
    """What dimensions of one size that broadcast to each other walk along together.

    A repeat stands for whatever another walks along there.  None if two walk along different places.
    """
    (first, *others) = dims or ((),)
    result = list(first)
    for other in others:
        both = _aligned(result, list(other))
        if both is None:
            return None
        result = []
        for a, b in both:
            if a.axis is not None and b.axis is not None and a != b:
                return None
            result.append(a if a.axis is not None else b)
    return joined(result)


def _aligned(ours: list[Atom], theirs: list[Atom]) -> list[tuple[Atom, Atom]] | None:
    """The atoms of both, cut to the same sizes."""
    result: list[tuple[Atom, Atom]] = []
    while ours and theirs:
        a, b = ours.pop(), theirs.pop()
        size = min(a.size, b.size)
        if size == 0 or a.size % size or b.size % size:
            return [(a, b)] if a == b else None
        for atom, rest in ((a, ours), (b, theirs)):
            if atom.size != size:
                rest.append(Atom(atom.axis, atom.stride * size, atom.size // size))
        result.insert(0, (Atom(a.axis, a.stride, size), Atom(b.axis, b.stride, size)))
    return None if ours or theirs else result


def fill(layout: Layout, dims: Iterable[int], extents: dict[Axis, int]) -> Layout | None:
    """``layout`` with the repeats in ``dims`` in place of what is missing of the axes.

    Where it fits, rows come before columns, and one repeat that could be either is the columns.  None if
    nothing fits.
    """
    places = [(d, i) for d in dims for i, atom in enumerate(layout[d]) if atom.axis is None]
    if not places:
        return layout
    missing: list[Atom] = []
    for axis, extent in extents.items():
        found = gaps(atoms_along(layout, axis), extent)
        if found is None:
            return None
        missing += [Atom(axis, atom.stride, atom.size) for atom in found]
    sizes = [layout[d][i].size for d, i in places]
    for order in _orders(missing):
        walks = reshaped(tuple((atom,) for atom in order), sizes)
        if walks is not None:
            given = dict(zip(places, walks, strict=True))
            return tuple(
                joined(a for i, atom in enumerate(dim) for a in given.get((d, i), (atom,)))
                for d, dim in enumerate(layout)
            )
    return None


def _orders(atoms: Sequence[Atom]) -> Iterator[list[Atom]]:
    """Choices of the atoms: more before fewer, in their order before others, later ones before earlier."""
    for count in range(len(atoms), 0, -1):
        places = list(permutations(range(len(atoms)), count))
        for chosen in sorted(places, key=lambda p: (list(p) != sorted(p), [-i for i in p])):
            yield [atoms[i] for i in chosen]
