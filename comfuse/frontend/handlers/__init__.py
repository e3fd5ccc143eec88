"""The tables: aten operator -> how it is written in the ops of the generator.

To teach the front end an operator that is one op of the generator, add a row to ``_SAME`` in
:mod:`.elementwise`; one that torch can write in terms of others, to :mod:`comfuse.frontend.decompositions`.
"""

from __future__ import annotations

from typing import Any

import torch

from comfuse.frontend.gemm import OTHERS
from comfuse.frontend.handlers import activations, elementwise, losses, norms, reductions
from comfuse.frontend.handlers.elementwise import FILLS, POSITIONS
from comfuse.frontend.views import dtype_of, name_of

aten = torch.ops.aten

ELEMENTWISE: dict[Any, elementwise.Handler] = {**elementwise.ELEMENTWISE, **activations.ELEMENTWISE}
REDUCTIONS: dict[Any, reductions.Handler] = {
    **reductions.REDUCTIONS,
    **norms.NORMS,
    **losses.LOSSES,
}

__all__ = [
    "ELEMENTWISE",
    "FILLS",
    "POSITIONS",
    "REDUCTIONS",
    "explain_unknown",
    "is_mutation",
]

_REASONS = {
    "it draws random numbers: set the dropout probability to 0 or the module to eval()": (
        "bernoulli", "native_dropout", "normal_functional", "rand", "rand_like", "randint", "randn",
        "randn_like", "rrelu_with_noise_functional",
    ),
    "it moves elements between rows or columns of the GEMM's result: do that after the call": (
        "as_strided", "constant_pad_nd", "diagonal", "flip", "index", "index_put", "index_select",
        "pixel_shuffle", "repeat", "roll", "scatter", "scatter_add", "select_scatter", "slice_scatter",
        "unfold",
    ),
    "it accumulates along a dimension, and a kernel has all elements at once: do it after the call": (
        "cummax", "cummin", "cumprod", "cumsum", "logcumsumexp",
    ),
    "it tells a zero from a negative zero, which a kernel may give in its place: call it before or after": (
        "atan2", "copysign", "signbit",
    ),
    "it orders the elements of a row: do it after the call": ("kthvalue", "median", "mode", "sort", "topk"),
    "attention is no elementwise work: call it before or after": (
        "scaled_dot_product_attention",
        *(f"_scaled_dot_product_{kind}{direction}"
          for kind in ("cudnn_attention", "efficient_attention", "flash_attention", "flash_attention_for_cpu",
                       "fused_attention_overrideable")
          for direction in ("", "_backward")),
    ),
}  # fmt: skip
_NAMED = {name: reason for reason, names in _REASONS.items() for name in names}


def is_mutation(node: torch.fx.Node) -> bool:
    """True for an operator that changes one of its inputs."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def explain_unknown(node: torch.fx.Node) -> str:
    """Why an operator that is in no table is refused."""
    target = node.target
    packet = getattr(target, "overloadpacket", target)
    name = getattr(packet, "__name__", "")
    if name == "index_put" and any(i is not None and dtype_of(i) is torch.bool for i in node.args[1]):  # type: ignore[union-attr]
        return (
            "it writes where a mask is true: y.masked_fill(mask, 0) and torch.where(mask, z, y) do that here"
        )
    if name in _NAMED:
        return _NAMED[name]
    if getattr(target, "namespace", None) == "comfuse":
        return (
            "an op of comfuse.ops is a kernel itself: call it outside, or write what it computes with the "
            "operators of torch"
        )
    if packet in OTHERS:
        return f"{OTHERS[packet]}, where a kernel has a product of matrices: call it before or after"
    if is_mutation(node):
        changed = name_of(node.args[0]) if isinstance(node.args[0], torch.fx.Node) else "a tensor"
        return f"it changes {changed} in place: return the new value instead"
    return "there is no counterpart of this operator in a fused kernel: compute it before or after the call"
