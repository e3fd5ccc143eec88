"""Gradients of two layers back to back that keep nothing of what lies between them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.autograd import Function

from comfuse.generator import catalog
from comfuse.generator.spec import DType, Major
from comfuse.ops.autograd.function import Gradients, of_product, of_row, of_tile, once, spread, spread_of
from comfuse.ops.autograd.layernorm import of_norm as of_layernorm
from comfuse.ops.autograd.rmsnorm import of_norm as of_rmsnorm
from comfuse.ops.faults import AB_DTYPES
from comfuse.ops.named import run
from comfuse.ops.programs import called
from comfuse.ops.schema import GENERAL
from comfuse.ops.tracing import constant_when_traced
from comfuse.reference import SPEC_DTYPES


class _Recomputing(Function):
    """``norm(activation(x @ w0.T + b0) @ w1.T + b1 + residual)``.  Keeps x, the weights and b0; with a norm
    also its vectors, what it read, (..., N), and the statistics of its rows.

    Backward: torch's own for the norm; a fused kernel that computes the middle anew beside its gradient, and
    stores what the GEMMs of the weights read, with the sums of b0's; then three plain GEMMs.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w0: Tensor,
        b0: Tensor | None,
        w1: Tensor,
        b1: Tensor | None,
        residual: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        activation: str | None,
        norm: str | None,
        position: str,
        eps: float,
        chain: bool,
    ) -> Tensor:
        layer, outer = (x, w0, b0, activation), (b1, residual, norm_weight, norm_bias)
        forward = _forward_of_chain if chain else _forward_of_layers
        y, *kept = forward(layer, w1, outer, norm, position, eps)
        ctx.activation, ctx.norm, ctx.after = activation, norm, norm is not None and position == "after"
        ctx.b1_dtype = None if b1 is None else b1.dtype
        ctx.residual = spread_of(residual, y)
        ctx.keeps_middle = bool(kept)
        ctx.save_for_backward(x, w0, b0, w1, norm_weight, norm_bias, *kept)
        result: Tensor = y
        return result


def _backward(ctx: Any, grad: Tensor) -> Gradients:
    x, w0, b0, w1, norm_weight, norm_bias, *kept = ctx.saved_tensors
    of_x, of_w0, of_b0, of_w1, of_b1, of_residual, of_weight, of_bias, *_ = ctx.needs_input_grad
    before = of_x or of_w0 or of_b0
    inside = before or of_w1 or of_b1 or (of_residual and not ctx.after)
    d, d_weight, d_bias = grad, None, None
    if ctx.norm is not None and (inside or of_weight or of_bias):
        asked = [inside, of_weight, of_bias]
        d, d_weight, d_bias = _of_norm(ctx.norm, grad, kept, norm_weight, norm_bias, asked)
    dx = dw0 = db0 = middle = None
    if before:
        d_pre, middle, db0 = _of_middle(d, x, w0, b0, w1, ctx.activation, of_w1, of_b0)
        dx, dw0 = of_product(d_pre, x, w0, of_x, of_w0)
    elif of_w1:
        middle = run("fused_gemm", x, w0, (b0, None), (ctx.activation,))
    _, dw1 = of_product(d, middle, None, False, True) if of_w1 else (None, None)
    db1 = of_row(d, ctx.b1_dtype) if of_b1 else None
    dresidual = of_tile(grad if ctx.after else d, ctx.residual) if of_residual else None
    return (
        *(dx, dw0, db0, dw1, db1, dresidual),
        d_weight.to(norm_weight.dtype) if of_weight else None,
        d_bias.to(norm_bias.dtype) if of_bias else None,
        *(None, None, None, None, None),
    )


class _MLP(_Recomputing):
    backward = staticmethod(once("fused_mlp")(_backward))


class _B2B(_Recomputing):
    backward = staticmethod(once("fused_b2b_gemm")(_backward))


def _forward_of_chain(
    layer: tuple[Any, ...], w1: Tensor, outer: tuple[Any, ...], norm: str | None, position: str, eps: float
) -> tuple[Tensor, ...]:
    x, w0, b0, activation = layer
    options, scalars = (activation, norm, position), () if norm is None else (eps,)
    tensors = (b0, w1, *outer)
    if norm is None:
        return (run("fused_mlp", x, w0, tensors, options, scalars),)
    return tuple(run("fused_mlp", x, w0, tensors, options, scalars, saved=True))


def _forward_of_layers(
    layer: tuple[Any, ...], w1: Tensor, outer: tuple[Any, ...], norm: str | None, position: str, eps: float
) -> tuple[Tensor, ...]:
    x, w0, b0, activation = layer
    b1, residual, norm_weight, norm_bias = outer
    middle = run("fused_gemm", x, w0, (b0, None), (activation,))
    if norm is None:
        return (run("fused_gemm", middle, w1, (b1, residual), (None,)),)
    if norm == "rmsnorm":
        tensors, options = (b1, residual, norm_weight), (position,)
        return tuple(run("fused_gemm_rmsnorm", middle, w1, tensors, options, (eps, 0.0), saved=True))
    before = residual if position == "before" else None
    tensors = (b1, before, norm_weight, norm_bias)
    y, *kept = run("fused_gemm_layernorm", middle, w1, tensors, (), (eps,), saved=True)
    if residual is not None and position == "after":
        y = (y + spread(residual, y)).to(y.dtype)
    return (y, *kept)


def _of_norm(
    norm: str,
    grad: Tensor,
    kept: list[Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    asked: list[bool],
) -> tuple[Any, Any, Any]:
    """The gradients of what the norm read, of its weight and of its bias, as far as asked."""
    if norm == "layernorm":
        pre, mean, rstd = kept
        return of_layernorm(grad, pre, mean, rstd, weight, bias, asked)
    pre, rrms = kept
    return (*of_rmsnorm(grad, pre, rrms, weight, 0.0, asked[:2]), None)


def _of_middle(
    d: Tensor,
    x: Tensor,
    w0: Tensor,
    b0: Tensor | None,
    w1: Tensor,
    activation: str | None,
    middle: bool,
    sums: bool,
) -> tuple[Any, Any, Any]:
    """The gradient of what the activation read, what it gave, and b0's gradient, as far as asked; ``d``: that
    of ``middle @ w1.T``.
    """
    w1_major = Major.K if w1.stride(0) == 1 and w1.stride(1) != 1 else Major.MN
    b0_dtype = None if b0 is None else SPEC_DTYPES[b0.dtype]
    sizes = [int(w0.shape[0]), int(w0.shape[1]), int(w1.shape[0])]
    text = _text_of(sizes, AB_DTYPES[x.dtype], b0_dtype, activation, w1_major, middle, sums)
    operands = [d.contiguous(), w1.t()]
    if b0 is not None:
        operands.append(b0)
    found = iter(GENERAL(text, x, w0, operands, []))
    return next(found), next(found) if middle else None, next(found) if sums else None


@constant_when_traced
def _text_of(
    sizes: list[int],
    dtype: DType,
    b0: DType | None,
    activation: str | None,
    w1_major: Major,
    middle: bool,
    sums: bool,
) -> str:
    return _remembered(tuple(sizes), dtype, b0, activation, w1_major, middle, sums)


@lru_cache(maxsize=1024)
def _remembered(
    sizes: tuple[int, ...],
    dtype: DType,
    b0: DType | None,
    activation: str | None,
    w1_major: Major,
    middle: bool,
    sums: bool,
) -> str:
    program = catalog.middle_gradient(
        *sizes, dtype, b0=b0, activation=activation, w1_major=w1_major, middle=middle, sums=sums
    )
    return called(program.text(), "fused_mlp")


def mlp(*arguments: Any) -> Tensor:
    y: Tensor = _MLP.apply(*arguments)
    return y


def b2b(*arguments: Any) -> Tensor:
    y: Tensor = _B2B.apply(*arguments)
    return y
