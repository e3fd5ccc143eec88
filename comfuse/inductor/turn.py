"""The rows of a GEMM in the order in which its result is read.

torch.nn.MultiheadAttention computes on rows of shape (sequence, batch), and with ``batch_first`` turns its
result round: behind its last GEMM, so that no kernel can go on there with what has its rows in the user's
order.  Turned ahead of that GEMM, what is turned is the result of attention, which is copied anyway, or which
attention lays out as its queries, and those are free to be stored in either order.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import map_arg

from comfuse.frontend.errors import TraceError
from comfuse.frontend.gemm import FACTORS
from comfuse.frontend.views import Permute, Reshape, is_view, view_of
from comfuse.inductor.emitter import Emitter, Size, sort
from comfuse.inductor.nodes import factors, holds_tensor, is_anchor, is_pointwise, readers, tensor, written
from comfuse.inductor.regroup import is_copy, quotient, regroup

aten = torch.ops.aten

_Values = dict[Node, Any]


def turn_rows(graph: Graph) -> dict[Node, str]:
    """Moves a swap of the rows' two dimensions from behind a GEMM ahead of it, where that costs no copy.

    ``mm(a).view(S, B, N).transpose(0, 1)`` becomes ``mm(a').view(B, S, N)``, where the rows of a' are those
    of a in the other order.

    Returns:
        For each GEMM behind which such a swap stays, why.
    """
    kept: dict[Node, str] = {}
    for anchor in [node for node in graph.nodes if is_anchor(node)]:
        turned = _turned(anchor)
        if turned is not None:
            try:
                reason = _turn(graph, anchor, turned)
            except TraceError as e:
                reason = e.reason
            if reason:
                kept[anchor] = f"its rows are read in another order, and {reason}"
    return kept


def _turned(anchor: Node) -> Node | None:
    """The result of a GEMM with its rows in the other order, if that is all that is read of it."""
    if not all(map(holds_tensor, (anchor, *factors(anchor)))) or tensor(anchor).dim() != 2:
        return None
    split = _only_user(anchor)
    turned = None if split is None else _only_user(split)
    if split is None or turned is None or not _is_reshape(split) or not holds_tensor(turned):
        return None
    view = view_of(turned)
    if tensor(split).dim() != 3 or view is None or view[1] != Permute((1, 0, 2)):
        return None
    if all(user.op == "output" for user in turned.users):
        return None  # nothing to gain
    return turned if _is_same(tensor(split).shape[-1], tensor(anchor).shape[-1]) else None


def _turn(graph: Graph, anchor: Node, turned: Node) -> str:
    """Turns the rows ahead of a GEMM; or leaves the graph as it computes, and says why."""
    left = factors(anchor)[0]
    rows = tensor(turned).shape[:2]
    view = view_of(left)
    if view is None or not _is_reshape(left):
        return "its left factor has no other"
    x = view[0]
    shape = _with_rows(tensor(x).shape, rows)
    if shape is None:
        return "its left factor has no other"
    if any(tensor(i).dim() > 1 for i in anchor.all_input_nodes if i not in factors(anchor)):
        return "so is what is added to it"
    if written(graph) & {anchor, left, x, turned}:
        return "the graph changes them in place"
    values = _changed(graph, {turned: tensor(turned).contiguous()})
    if values is None:
        return "so is what the graph returns or an operator that minds it"
    source = x.args[0] if is_copy(x) else x
    assert isinstance(source, Node)
    if len(shape) > tensor(source).dim():
        source = Emitter(graph, source, source).reshaped(source, shape)
        sort(graph)
    is_copied = is_copy(x) or not _has_rows(tensor(source))
    is_private = _only_user(left) is anchor and (not is_copy(x) or _only_user(x) is left)
    if not _has_rows(tensor(source).transpose(0, 1)) and not (is_copied and is_private):
        reason = _lay_out(graph, source, left) if is_private else _shared(anchor, left, x)
        if reason:
            return reason
    _apply(graph, anchor, turned, source, values)
    return ""


def _shared(anchor: Node, *values: Node) -> str:
    """Why the left factor of a GEMM, and what it is a view of, cannot be stored in another order."""
    others = dict.fromkeys(user for node in values for user in readers(node) if user is not anchor)
    names = ["the graph's results" if user.op == "output" else user.name for user in others]
    return f"its left factor is read in this order by others: {', '.join(names)}"


def _with_rows(shape: Sequence[Size], rows: Sequence[Size]) -> tuple[Size, ...] | None:
    """A shape (S, B, ...), or (S, B * H, D) as (S, B, H, D), for rows (B, S); None if it is neither."""
    if len(shape) < 3 or not _is_same(shape[0], rows[1]):
        return None
    if _is_same(shape[1], rows[0]):
        return tuple(shape)
    heads = quotient(shape[1], rows[0])
    return None if heads is None else (shape[0], rows[0], heads, *shape[2:])


def _apply(graph: Graph, anchor: Node, turned: Node, source: Node, values: _Values) -> None:
    left, split = factors(anchor)[0], turned.args[0]
    emit = Emitter(graph, turned, anchor)
    order = [1, 0, *range(2, tensor(source).dim())]
    other = emit.call(aten.permute.default, source, order)
    if not _has_rows(tensor(other)):
        other = emit.call(aten.clone.default, other, memory_format=torch.contiguous_format)
    anchor.update_arg(FACTORS[anchor.target][0], emit.reshaped(other, tensor(left).shape))
    new = emit.reshaped(anchor, tensor(turned).shape)
    turned.replace_all_uses_with(new)
    for node, val in values.items():
        node.meta["val"] = val
    for node in (turned, split, left, view_of(left)[0]):  # type: ignore[index]
        if not node.users:  # type: ignore[union-attr]
            graph.erase_node(node)  # type: ignore[arg-type]
    sort(graph)


# --- attention ------------------------------------------------------------------------------------------


def _lay_out(graph: Graph, result: Node, left: Node) -> str:
    """Has attention write its result as it is needed; or says why not.

    It lays it out as its queries, and those are a part of what a pointwise kernel or a copy stores for it: in
    which order is free to choose.

    Args:
        result: an attention's result, its dimensions in some order.
        left: what reads it, and will read it turned.
    """
    attention = _attention(result)
    if attention is None:
        return "its left factor would have to be copied"
    for argument in attention.args[:3]:
        assert isinstance(argument, Node)
        regroup(graph, argument)
    queries = attention.args[0]
    assert isinstance(queries, Node)
    stored = _stored_above(queries)
    if stored is None:
        return "the order of attention's queries is not free"
    for first in range(tensor(stored).dim() - 1):
        values = _changed(graph, {stored: _swapped(tensor(stored), first)}, left)
        if values is None or any(not _stays_free(node, values, stored, attention) for node in values):
            continue
        if result in values and _has_rows(values[result].transpose(0, 1)):
            _swap(graph, stored, first, values)
            return ""
    if any(user.op == "output" for node in (queries, stored, result) for user in readers(node)):
        return "the graph returns attention's queries or its result in this order, as it does in training"
    return "attention's queries or its result are read in this order by others"


def _attention(node: Node) -> Node | None:
    """The operator of whose result a node is a permutation."""
    while (view := view_of(node)) is not None and isinstance(view[1], Permute):
        node = view[0]
    if node.target is operator.getitem and node.args[1] == 0:
        node = node.args[0]  # type: ignore[assignment]
    return node if "scaled_dot_product" in str(node.target) else None


def _stored_above(node: Node) -> Node | None:
    """What a node is a view of, if that is a copy or pointwise, and stored row by row."""
    while is_view(node) and not is_copy(node):
        node = node.args[0]  # type: ignore[assignment]
    val = tensor(node)
    return node if is_pointwise(node) and _is_dense(val, range(val.dim())) else None


def _swapped(val: torch.Tensor, first: int) -> torch.Tensor:
    """A tensor of the same shape of which dimension ``first`` lies inside of the next one."""
    return val.transpose(first, first + 1).contiguous().transpose(first, first + 1)


def _stays_free(node: Node, values: _Values, stored: Node, attention: Node) -> bool:
    """Whether a node whose strides change computes no more for that."""
    if node in (stored, attention) or node.target is operator.getitem:
        return True
    view = view_of(node)
    if view is None or view[0] not in values or is_copy(node):
        return False
    ours, theirs = values[node].untyped_storage(), values[view[0]].untyped_storage()
    return bool(ours._cdata == theirs._cdata)


def _swap(graph: Graph, stored: Node, first: int, values: _Values) -> None:
    emit = Emitter(graph, stored, stored)
    order = [*range(tensor(stored).dim())]
    order[first], order[first + 1] = order[first + 1], order[first]
    source = stored.args[0] if is_copy(stored) else stored
    turned = emit.call(aten.permute.default, source, order)
    copy = emit.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
    new = emit.call(aten.permute.default, copy, order)
    stored.replace_all_uses_with(new, lambda user: user is not turned)
    for node, val in values.items():
        if node is not stored:
            node.meta["val"] = val
    if not stored.users:
        graph.erase_node(stored)


# --- values ---------------------------------------------------------------------------------------------


def _changed(graph: Graph, given: Mapping[Node, torch.Tensor], *ends: Node) -> _Values | None:
    """The values that are laid out in another way with those given, up to ``ends``.

    None if results of the graph are, or what is read by an operator that may give other sizes for it.
    """
    found: _Values = dict(given)
    for node in graph.nodes:
        if node in found or node in ends or not any(i in found for i in node.all_input_nodes):
            continue
        if not _can_run(node):
            return None
        args, kwargs = map_arg((node.args, node.kwargs), lambda i: found.get(i, i.meta["val"]))
        with torch.no_grad():
            val = node.target(*args, **kwargs)
        if not _is_laid_out_alike(val, node.meta["val"]):
            found[node] = val
    return found


def _can_run(node: Node) -> bool:
    if node.target is operator.getitem:
        return True
    sizes = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return isinstance(node.target, torch._ops.OpOverload) and not (
        sizes & {*node.target.tags} or node.target._schema.is_mutable
    )


def _is_laid_out_alike(val: Any, other: Any) -> bool:
    if isinstance(val, list | tuple):
        return all(_is_laid_out_alike(*pair) for pair in zip(val, other, strict=True))
    if isinstance(val, torch.Tensor):
        return _is_same(val.stride(), other.stride())
    return val is None or _is_same(val, other)


def _has_rows(val: torch.Tensor) -> bool:
    """Whether a tensor (S, B, ...) is one of S * B rows without a copy, for all sizes."""
    return _is_dense(val, range(2)) and _is_dense(val, range(2, val.dim())) and _is_same(val.stride(-1), 1)


def _is_dense(val: torch.Tensor, dims: range) -> bool:
    """Whether dimensions are one walk; those of size 1 say nothing."""
    several = [d for d in dims if not _is_same(val.shape[d], 1)]
    return all(_is_same(val.stride(d), val.shape[e] * val.stride(e)) for d, e in pairwise(several))


def _is_reshape(node: Node) -> bool:
    view = view_of(node)
    return view is not None and isinstance(view[1], Reshape) and not is_copy(node)


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_same(size: Any, other: Any) -> bool:
    """Whether two sizes, or tuples of them, are equal for all numbers."""
    return bool(statically_known_true(sym_eq(size, other)))
