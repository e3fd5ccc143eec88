"""What the gradients of the ops share: the GEMM's own gradients, those of operands, and derivatives of
gradients, which there are none of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from comfuse.errors import GradientError
from comfuse.ops.faults import AUTOCAST_DEVICES

Gradients = tuple[Tensor | None, ...]
Backward = Callable[..., Gradients]


class _Once(Function):
    """Passes gradients on; their own gradient is an error."""

    @staticmethod
    def forward(ctx: Any, op: str, gradients: Gradients, *_: Any) -> Gradients:
        ctx.op = op
        return gradients

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise GradientError(ctx.op, "its gradient has no gradient: it cannot be differentiated twice")


def _no_autocast(device: str) -> AbstractContextManager[Any]:
    if device not in AUTOCAST_DEVICES:
        return nullcontext()
    return torch.autocast(device, enabled=False)


def once(op: str) -> Callable[[Backward], Backward]:
    """For the backward of a Function: runs it outside of autocast, and refuses a second derivative.

    What is kept for a backward has no history, so that a second derivative would be wrong without a word.
    It raises GradientError instead, also where the gradient that comes in has none.  ``ctx.keeps_middle``:
    whether something is kept that depends on an input that wants a gradient, and is no input or result.
    """

    def decorate(backward: Backward) -> Backward:
        @functools.wraps(backward)
        def wrapper(ctx: Any, *grads: Tensor) -> Gradients:
            with torch.no_grad(), _no_autocast(grads[0].device.type):
                gradients = backward(ctx, *grads)
            # A compiler refuses second derivatives by itself.
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                middle = [grads[0].new_empty(0).requires_grad_()] if ctx.keeps_middle else []
                return _Once.apply(op, gradients, *grads, *ctx.saved_tensors, *middle)
            return gradients

        return wrapper

    return decorate


def of_product(
    d: Tensor, x: Tensor | None, weight: Tensor | None, of_x: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and weight, where d (..., N) is that of ``x @ weight.T``, as far as asked.

    ``x`` is read only for the weight's and may be None else, and the other way round.
    """
    rows = d.reshape(d.shape[:-1].numel(), d.shape[-1])
    dx = dw = None
    if of_x:
        assert weight is not None
        dx = (rows @ weight).view(*d.shape[:-1], weight.shape[1])
    if of_weight:
        assert x is not None
        dw = rows.t() @ x.reshape(rows.shape[0], x.shape[-1])
    return dx, dw


def of_row(d: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of a row vector (N,) that was added to each row, summed up in float32."""
    return d.reshape(d.shape[:-1].numel(), d.shape[-1]).sum(0, dtype=torch.float32).to(dtype)


def spread(tile: Tensor, whole: Tensor) -> Tensor:
    """A tile operand, which may be flattened or broadcast, in the shape of ``whole``."""
    return (tile.reshape(whole.shape) if tile.numel() == whole.numel() else tile).expand(whole.shape)


class Spread(NamedTuple):
    """How a tile operand was broadcast.  No sizes: those may be symbols in a trace.

    Attributes:
        dims: the dimensions of the whole that the tile did not have, or of size 1.
        missing: how many of them it did not have.
        flat: whether its leading sizes came flattened to M.
        dtype: the tile's.
    """

    dims: tuple[int, ...]
    missing: int
    flat: bool
    dtype: torch.dtype


def spread_of(tile: Tensor | None, whole: Tensor) -> Spread | None:
    """How ``tile`` was broadcast to the shape of ``whole``; None if there is none."""
    if tile is None:
        return None
    flat = tile.ndim == 2 and tile.ndim != whole.ndim and tile.numel() == whole.numel()
    if flat:
        return Spread((), 0, True, tile.dtype)
    missing = whole.ndim - tile.ndim
    dims = tuple(
        i for i in range(whole.ndim) if i < missing or (tile.shape[i - missing] == 1 and whole.shape[i] != 1)
    )
    return Spread(dims, missing, False, tile.dtype)


def of_tile(d: Tensor, spread: Spread) -> Tensor:
    """The gradient of a tile that was broadcast to d's shape and added."""
    if spread.flat:
        return d.reshape(d.shape[:-1].numel(), d.shape[-1]).to(spread.dtype)
    if spread.dims:
        d = d.sum(spread.dims, keepdim=True, dtype=torch.float32)
        for _ in range(spread.missing):
            d = d.squeeze(0)
    return d.to(spread.dtype)
