"""Views of views as one: dimensions split, then brought into another order.

Of x (S, B, H * D) ``x.view(S, B * H, D).transpose(0, 1).view(B, H, S, D)``, as attention splits heads,
joins dimensions, which takes a copy unless S lies outside of B; ``x.view(S, B, H, D).permute(1, 2, 0, 3)`` is
the same for any strides of S and B.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch.fx import Graph, Node

from comfuse.frontend.views import Permute, Reshape, view_of
from comfuse.inductor.emitter import Emitter, Size
from comfuse.inductor.nodes import tensor

aten = torch.ops.aten


class _Axis:
    """A dimension of the first value, or a part of one."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._parts: tuple[_Axis, ...] = ()

    def split(self, outer: Size, inner: Size) -> tuple[_Axis, _Axis]:
        self._parts = found = _Axis(outer), _Axis(inner)
        return found

    def leaves(self) -> list[_Axis]:
        if not self._parts:
            return [] if _is_one(self.size) else [self]
        return [leaf for part in self._parts for leaf in part.leaves()]


_Dims = list[list[_Axis]]


def regroup(graph: Graph, end: Node) -> None:
    """Replaces the reshapes and permutations that ``end`` consists of by one of each, if that is the same.

    Dimensions that ``end`` joins, and sizes that the graph has no node for, leave it as it is.
    """
    chain = _chain(end)
    if len(chain) < 2:
        return
    base = chain[0].args[0]
    assert isinstance(base, Node)
    axes = [_Axis(size) for size in tensor(base).shape]
    dims: _Dims | None = [[axis] for axis in axes]
    for node in chain:
        view = view_of(node)
        assert view is not None
        if isinstance(view[1], Permute):
            dims = [dims[d] for d in view[1].order]
        else:
            dims = _reshaped(dims, tensor(node).shape)
        if dims is None:
            return
    split = [leaf for axis in axes for leaf in axis.leaves()]
    last = [[leaf for axis in dim for leaf in axis.leaves()] for dim in dims]
    if any(len(dim) != 1 for dim in last):
        return
    emit = Emitter(graph, end, end)
    parts = emit.call(aten.reshape.default, base, emit.sizes([leaf.size for leaf in split], end))
    new = emit.call(aten.permute.default, parts, [split.index(leaf) for (leaf,) in last])
    end.replace_all_uses_with(new)
    for node in reversed(chain):
        if not node.users:
            graph.erase_node(node)


def _chain(end: Node) -> list[Node]:
    """The reshapes and permutations that end there, the first one first."""
    found: list[Node] = []
    while (view := view_of(end)) is not None:
        if not isinstance(view[1], Permute | Reshape) or is_copy(end):
            break
        found.insert(0, end)
        end = view[0]
    return found


def is_copy(node: Node) -> bool:
    """Whether a node that counts as a view is there for its memory alone."""
    return node.target in (aten.clone.default, aten.contiguous.default)


def _reshaped(dims: _Dims, shape: Sequence[Size]) -> _Dims | None:
    """The dimensions in another shape; None if sizes do not divide each other."""
    pending = [leaf for dim in dims for axis in dim for leaf in axis.leaves()]
    result: _Dims = []
    for size in reversed(shape):
        dim: list[_Axis] = []
        while not _is_one(size):
            if not pending:
                return None
            axis = pending.pop()
            if (outer := quotient(size, axis.size)) is not None:
                dim.insert(0, axis)
                size = outer
            elif (rest := quotient(axis.size, size)) is not None:
                first, second = axis.split(rest, size)
                pending.append(first)
                dim.insert(0, second)
                size = 1
            else:
                return None
        result.insert(0, dim)
    return result


def _is_one(size: Size) -> bool:
    return _expression(size) == 1


def quotient(size: Size, by: Size) -> Size | None:
    """The size over another, if that divides it, whatever the numbers for symbols are."""
    quotient = _expression(size) / _expression(by)
    if sympy.denom(quotient) != 1:
        return None
    return int(quotient) if quotient.is_Integer else size // by


def _expression(size: Size) -> sympy.Expr:
    return sympy.Integer(size) if isinstance(size, int) else size.node.expr
