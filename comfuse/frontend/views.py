"""Operators that compute nothing: they give the same elements another shape, order, or a part of them.

Each is read into a small description, which is applied in both directions: forwards to the layout of a value
that depends on the GEMM, backwards from where a value is needed to the argument that it comes from.  Copies
count as views; what they cost does not matter to what is computed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from comfuse.frontend import axes
from comfuse.frontend.axes import Dim, Layout, Shape
from comfuse.frontend.errors import TraceError
from comfuse.frontend.source import location

aten = torch.ops.aten
prims = torch.ops.prims

CASTS = {aten._to_copy.default, prims.convert_element_type.default, aten.to.dtype}
_RESHAPES = {
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.reshape.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.view.default,
    aten.view_as.default,
}
_PERMUTES = {aten.permute.default, aten.t.default, aten.transpose.int}
_EXPANDS = {aten.broadcast_to.default, aten.expand.default}
_PARTS = {aten.select.int, aten.slice.Tensor}
_VIEWS = _RESHAPES | _PERMUTES | _EXPANDS | _PARTS
# Their results are read one by one, by operator.getitem.
_SPLITS = {aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int}


@dataclass(frozen=True)
class Reshape:
    """The same elements in the same order."""


@dataclass(frozen=True)
class Permute:
    order: tuple[int, ...]


@dataclass(frozen=True)
class Expand:
    """Dimensions of size 1 repeated, and new ones.  ``places``: where each dimension goes."""

    places: tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """``count`` places of a dimension, from ``start`` on, each ``step``-th."""

    dim: int
    start: int
    step: int
    count: int


@dataclass(frozen=True)
class Select:
    """One place of a dimension, which is gone from the result."""

    dim: int
    index: int


View = Reshape | Permute | Expand | Window | Select


# --- what the user knows a node by ----------------------------------------------------------------------


def refuse(node: torch.fx.Node, reason: str) -> TraceError:
    """The error that says why ``node`` cannot be taken."""
    target = str(node.target) if node.op == "call_function" else None
    return TraceError(reason, node=name_of(node), location=location(node), target=target)


def refuse_outside(user: torch.fx.Node, source: torch.fx.Node) -> TraceError:
    """The error of a node that reads a tensor of the surroundings."""
    return refuse(
        user,
        f"its input {source.name} is a tensor that is no argument of the function (a module's parameter, or "
        "a variable from outside): make it one",
    )


def name_of(node: torch.fx.Node) -> str:
    """What the user knows the node by: its name, for an argument that of the parameter."""
    name: str = node.meta.get("argument", node.name)
    return name


def at(node: torch.fx.Node) -> str:
    """``" at file:line"`` of the node, or nothing."""
    place = location(node)
    return "" if place is None else f" at {place}"


def shape_of(node: torch.fx.Node) -> Shape:
    return tuple(node.meta["val"].shape)


def dtype_of(node: torch.fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The node's arguments by the names of its schema, defaults filled in."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    return {a.name: given.get(a.name, a.default_value) for a in schema.arguments}


# --- reading the graph ----------------------------------------------------------------------------------


def is_split(node: torch.fx.Node) -> bool:
    """True for an operator whose results are parts of its input."""
    return node.target in _SPLITS


def is_view(node: torch.fx.Node) -> bool:
    """True for an operator that :func:`view_of` reads.  Looks at no sizes."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    source = node.args[0]
    if node.target is operator.getitem:
        return is_split(source)
    return node.target in _VIEWS or (node.target is aten.view.dtype and dtype_of(node) == dtype_of(source))


def source(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, over all views; itself where it is none.  Looks at no sizes."""
    while is_view(node):
        first = node.args[0]
        assert isinstance(first, torch.fx.Node)
        node = first if node.target is not operator.getitem else first.args[0]  # type: ignore[assignment]
    return node


def view_of(node: torch.fx.Node) -> tuple[torch.fx.Node, View] | None:
    """What ``node`` is a view of, and which; None if it is none."""
    if not is_view(node):
        return None
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    if node.target is operator.getitem:
        return source.args[0], _part(source, node.args[1])  # type: ignore[return-value]
    return source, _view(node, source)


def _view(node: torch.fx.Node, source: torch.fx.Node) -> View:
    if node.target in _EXPANDS:
        rank, own = len(shape_of(node)), len(shape_of(source))
        return Expand(tuple(range(rank - own, rank)))
    if node.target in _PERMUTES:
        return Permute(tuple(_permutation(node, len(shape_of(source)))))
    if node.target in _PARTS:
        given = arguments(node)
        dim = given["dim"] % len(shape_of(source))
        if node.target is aten.select.int:
            return Select(dim, given["index"] % shape_of(source)[dim])
        start = _within(given["start"] or 0, shape_of(source)[dim])
        return Window(dim, start, given["step"], shape_of(node)[dim])
    return Reshape()


def _permutation(node: torch.fx.Node, rank: int) -> list[int]:
    order = list(range(rank))
    if node.target is aten.permute.default:
        return [d % rank for d in node.args[1]]  # type: ignore[union-attr,operator,misc]
    if node.target is aten.t.default:
        return order[::-1]
    i, j = (d % rank for d in node.args[1:3])  # type: ignore[operator]
    order[i], order[j] = order[j], order[i]
    return order


def _part(split: torch.fx.Node, index: Any) -> View:
    given = arguments(split)
    shape = shape_of(split.args[0])  # type: ignore[arg-type]
    dim = given["dim"] % len(shape)
    if split.target is aten.unbind.int:
        return Select(dim, index % shape[dim])
    sizes = [tuple(part.shape)[dim] for part in split.meta["val"]]
    index %= len(sizes)
    return Window(dim, sum(sizes[:index]), 1, sizes[index])


def _within(start: int, size: int) -> int:
    return min(max(start + size if start < 0 else start, 0), size)


# --- forwards -------------------------------------------------------------------------------------------


def moved(layout: Layout, view: View, shape: Shape) -> Layout | None:
    """The layout of the view, of ``shape``, of a tensor with ``layout``.

    A window moves where the layout starts as well: see :func:`origin`.  None if no layout describes it.
    """
    if isinstance(view, Reshape):
        return axes.reshaped(layout, shape)
    if isinstance(view, Permute):
        return tuple(layout[d] for d in view.order)
    if isinstance(view, Expand):
        own = dict(zip(view.places, layout, strict=True))
        return tuple(
            dim if axes.size_of(dim := own.get(d, ())) == size else axes.repeated(size)
            for d, size in enumerate(shape)
        )
    dim = layout[view.dim]
    if isinstance(view, Select):
        return None if len(dim) > 1 else (*layout[: view.dim], *layout[view.dim + 1 :])
    if len(dim) > 1 and view.count != axes.size_of(dim):
        return None
    if len(dim) == 1:
        dim = axes.joined([axes.Atom(dim[0].axis, dim[0].stride * view.step, view.count)])
    return (*layout[: view.dim], dim, *layout[view.dim + 1 :])


def origin(layout: Layout, view: View) -> tuple[axes.Axis, int] | None:
    """The axis of which a window or selection takes a part, and the first place of that part.

    None if it takes all there is.
    """
    if not isinstance(view, Window | Select) or not layout[view.dim]:
        return None
    (atom, *_) = layout[view.dim]
    if atom.axis is None or (isinstance(view, Window) and view.count == axes.size_of(layout[view.dim])):
        return None
    return atom.axis, atom.stride * (view.start if isinstance(view, Window) else view.index)


# --- backwards ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picked:
    """A dimension of an argument: of its ``size`` places, those that are read, and what they walk along."""

    size: int
    walk: Dim
    start: int = 0
    step: int = 1

    @property
    def count(self) -> int:
        return axes.size_of(self.walk)

    @property
    def is_whole(self) -> bool:
        return self.count == self.size


def picked(layout: Layout) -> tuple[Picked, ...]:
    return tuple(Picked(axes.size_of(dim), dim) for dim in layout)


def undone(dims: tuple[Picked, ...], view: View, shape: Shape) -> tuple[Picked, ...] | None:
    """The dimensions of a tensor of ``shape``, of whose ``view`` the dimensions are ``dims``.

    None if no such dimensions describe it.
    """
    if isinstance(view, Permute):
        back: list[Picked] = [*dims]
        for d, source in enumerate(view.order):
            back[source] = dims[d]
        return tuple(back)
    if isinstance(view, Expand):
        return tuple(
            dim if (dim := dims[place]).size == size else Picked(size, ())
            for place, size in zip(view.places, shape, strict=True)
        )
    if isinstance(view, Select):
        return (*dims[: view.dim], Picked(shape[view.dim], (), view.index), *dims[view.dim :])
    if isinstance(view, Window):
        dim = dims[view.dim]
        start, step = view.start + view.step * dim.start, view.step * dim.step
        window = replace(dim, size=shape[view.dim], start=start, step=step)
        return (*dims[: view.dim], window, *dims[view.dim + 1 :])
    return _reshaped_back(dims, shape)


def _reshaped_back(dims: tuple[Picked, ...], shape: Shape) -> tuple[Picked, ...] | None:
    if all(dim.is_whole for dim in dims):
        layout = axes.reshaped(tuple(dim.walk for dim in dims), shape)
        return None if layout is None else picked(layout)
    result: list[Picked] = []
    for block, sizes in _blocks(dims, shape):
        found = _block_back(block, sizes)
        if found is None:
            return None
        result += found
    return tuple(result)


def _blocks(dims: tuple[Picked, ...], shape: Shape) -> Iterator[tuple[list[Picked], list[int]]]:
    """The runs of dimensions, as short as can be, that have as many elements before as after."""
    own, others = list(dims), list(shape)
    while own or others:
        block = [own.pop(0)] if own else []
        sizes = [others.pop(0)] if others else []
        while (have := math.prod(d.size for d in block)) != (want := math.prod(sizes)):
            if have < want and own:
                block.append(own.pop(0))
            elif want < have and others:
                sizes.append(others.pop(0))
            else:
                break
        yield block, sizes


def _block_back(block: list[Picked], sizes: list[int]) -> tuple[Picked, ...] | None:
    parts = [d for d, dim in enumerate(block) if not dim.is_whole]
    if not parts:
        layout = axes.reshaped(tuple(dim.walk for dim in block), sizes)
        return None if layout is None else picked(layout)
    if len(parts) > 1 or len(sizes) != 1:
        return None
    part = block[parts[0]]
    before, behind = (
        axes.joined(a for dim in side for a in dim.walk)
        for side in (block[: parts[0]], block[parts[0] + 1 :])
    )
    if not behind and not before:
        return (part,)
    if part.walk:  # a window inside a larger dimension
        return None
    inner = axes.size_of(behind)
    if not before:
        return (Picked(sizes[0], behind, part.start * inner),)
    return None if behind else (Picked(sizes[0], before, part.start, part.size),)
