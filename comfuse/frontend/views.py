"""Operators that move no value, and the way back from a matrix of the GEMM to the argument behind it.

A *view* here is any operator whose result holds the same elements in the same row-major order: it changes
the shape and nothing else.  Copies and casts count too; what they cost does not matter to what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from comfuse.frontend.errors import TraceError
from comfuse.frontend.source import location

aten = torch.ops.aten
prims = torch.ops.prims

CASTS = {aten._to_copy.default, prims.convert_element_type.default, aten.to.dtype}
_RESHAPES = {
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
_IDENTITIES = {
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.view_as.default,
}
_PERMUTES = {aten.permute.default, aten.t.default, aten.transpose.int}
# Views only if they leave the shape as it is.
_IF_SAME_SHAPE = {aten.expand.default, aten.slice.Tensor, aten.view.dtype}


def refuse(node: torch.fx.Node, reason: str) -> TraceError:
    """The error that says why ``node`` cannot be taken."""
    target = str(node.target) if node.op == "call_function" else None
    return TraceError(reason, node=name_of(node), location=location(node), target=target)


def name_of(node: torch.fx.Node) -> str:
    """What the user knows the node by: its name, for an argument that of the parameter."""
    name: str = node.meta.get("argument", node.name)
    return name


def shape_of(node: torch.fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def dtype_of(node: torch.fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The node's arguments by the names of its schema, defaults filled in."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    return {a.name: given.get(a.name, a.default_value) for a in schema.arguments}


def source_of_view(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node that ``node`` is a view of, or None if it is no view."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return None
    source = node.args[0]
    if node.target in _RESHAPES or node.target in _IDENTITIES:
        return source
    if (
        node.target in _IF_SAME_SHAPE
        and shape_of(node) == shape_of(source)
        and dtype_of(node) == dtype_of(source)
    ):
        return source
    if node.target in _PERMUTES and _keeps_order(shape_of(source), _permutation(node)):
        return source
    return None


def _permutation(node: torch.fx.Node) -> list[int]:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    rank = len(shape_of(source))
    order = list(range(rank))
    if node.target is aten.permute.default:
        return [d % rank for d in node.args[1]]  # type: ignore[union-attr,operator,misc]
    if node.target is aten.t.default:
        return order[::-1]
    i, j = (d % rank for d in node.args[1:3])  # type: ignore[operator]
    order[i], order[j] = order[j], order[i]
    return order


def _keeps_order(shape: tuple[int, ...], permutation: list[int]) -> bool:
    """True if only dimensions of size 1 move."""
    moved = [d for d in permutation if shape[d] != 1]
    return moved == sorted(moved)


@dataclass(frozen=True)
class Matrix:
    """An argument of the function that is A or B of the GEMM.

    ``cast`` is the dtype it is converted to before the product, if the graph converts it.
    """

    placeholder: torch.fx.Node
    cast: torch.dtype | None


def matrix_a(gemm: torch.fx.Node, node: torch.fx.Node) -> Matrix:
    """The argument (..., K) that ``node``, the left factor of ``gemm``, is a view of."""
    found, transposed = _walk_back(gemm, node, "left")
    shape, k = shape_of(found.placeholder), shape_of(node)[-1]
    if transposed or shape[-1:] != (k,):
        raise refuse(
            gemm,
            f"its left factor must be an argument of shape (..., K) with K = {k}; it is a rearranged "
            f"{name_of(found.placeholder)} of shape {shape}: rearrange it before the call",
        )
    return found


def matrix_b(gemm: torch.fx.Node, node: torch.fx.Node) -> Matrix:
    """The argument (N, K) whose transpose ``node``, the right factor of ``gemm``, is."""
    found, transposed = _walk_back(gemm, node, "right")
    k, n = shape_of(node)[-2:]
    shape = shape_of(found.placeholder)
    if not transposed or shape != (n, k):
        raise refuse(
            gemm,
            f"its right factor {name_of(found.placeholder)} of shape {shape} is used as a (K, N) matrix; "
            f"only weights of shape (N, K) = ({n}, {k}), as torch.nn.Linear has them, are taken: store the "
            "transpose once (w = w.t().contiguous()) and write F.linear(x, w) or x @ w.t()",
        )
    return found


def _walk_back(gemm: torch.fx.Node, node: torch.fx.Node, side: str) -> tuple[Matrix, bool]:
    cast: torch.dtype | None = None
    transposed = False
    while node.op != "placeholder":
        source = source_of_view(node)
        if source is None and node.target in CASTS:
            source = node.args[0]  # type: ignore[assignment]
            cast = cast or dtype_of(node)
        elif source is None and node.target in _PERMUTES and _swaps_matrix(node):
            source = node.args[0]  # type: ignore[assignment]
            transposed = not transposed
        if source is None:
            raise refuse(
                gemm,
                f"its {side} factor is computed inside the function, by {name_of(node)}"
                f"{_at(node)}: a kernel starts with the GEMM, so compute the factor before the call",
            )
        node = source
    return Matrix(node, cast), transposed


def _swaps_matrix(node: torch.fx.Node) -> bool:
    """True if the permutation swaps the two dimensions that are not 1."""
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    shape = shape_of(source)
    moved = [d for d in _permutation(node) if shape[d] != 1]
    return len(moved) == 2 and moved[0] > moved[1]


def _at(node: torch.fx.Node) -> str:
    place = location(node)
    return "" if place is None else f" at {place}"
