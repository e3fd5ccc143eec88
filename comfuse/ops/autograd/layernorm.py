"""Gradients of fused_gemm_layernorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from comfuse.ops.autograd.function import Gradients, of_product, of_row, of_tile, once, spread_of
from comfuse.ops.named import run

_NAME = "fused_gemm_layernorm"


class _LayerNorm(Function):
    """Keeps x, weight and ln_weight; and what the norm read, (..., N) in x's dtype, with the mean and rstd of
    its rows in float32: further outputs of the fused kernel.

    Backward: torch's own for a LayerNorm, which stands before the GEMMs and so cannot be fused behind one;
    then two plain GEMMs and the sums of a bias.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        ln_weight: Tensor | None,
        ln_bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        of_x, of_weight = ctx.needs_input_grad[:2]
        operands = (bias, residual, ln_weight, ln_bias)
        y, pre, mean, rstd = run(_NAME, x, weight, operands, (), (eps,), saved=True)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.residual = spread_of(residual, y)
        ctx.keeps_middle = any(ctx.needs_input_grad[:4])
        kept = (x if of_weight else None, weight if of_x else None, ln_weight, ln_bias)
        ctx.save_for_backward(*kept, pre, mean, rstd)
        result: Tensor = y
        return result

    @staticmethod
    @once(_NAME)
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight, ln_weight, ln_bias, pre, mean, rstd = ctx.saved_tensors
        of_x, of_weight, of_bias, of_residual, of_ln_weight, of_ln_bias, _ = ctx.needs_input_grad
        inside = of_x or of_weight or of_bias or of_residual
        asked = [inside, of_ln_weight, of_ln_bias]
        d, d_ln_weight, d_ln_bias = of_norm(grad, pre, mean, rstd, ln_weight, ln_bias, asked)
        dx = dw = dbias = dresidual = None
        if inside:
            dx, dw = of_product(d, x, weight, of_x, of_weight)
            dbias = of_row(d, ctx.bias_dtype) if of_bias else None
            dresidual = of_tile(d, ctx.residual) if of_residual else None
        return (
            dx,
            dw,
            dbias,
            dresidual,
            d_ln_weight.to(ln_weight.dtype) if of_ln_weight else None,
            d_ln_bias.to(ln_bias.dtype) if of_ln_bias else None,
            None,
        )


def of_norm(
    grad: Tensor,
    pre: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    asked: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of what the norm read, in its dtype, of its weight and of its bias, as far as asked."""
    rows = [t for t in (weight, bias) if t is not None]
    dtype = pre.dtype
    if not grad.is_cuda or any(t.dtype != dtype for t in rows):  # torch's takes statistics of float32 else
        grad, pre = grad.float(), pre.float()
        weight, bias = (None if t is None else t.float() for t in (weight, bias))
    d, d_weight, d_bias = torch.ops.aten.native_layer_norm_backward(
        grad.contiguous(), pre, [pre.shape[-1]], mean.unsqueeze(-1), rstd.unsqueeze(-1), weight, bias, asked
    )
    return d.to(dtype) if asked[0] else d, d_weight, d_bias


def layernorm(*arguments: Any) -> Tensor:
    y: Tensor = _LayerNorm.apply(*arguments)
    return y
