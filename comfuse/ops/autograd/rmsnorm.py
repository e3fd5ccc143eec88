"""Gradients of fused_gemm_rmsnorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from comfuse.ops.autograd.function import Gradients, of_product, of_row, of_tile, once, spread_of
from comfuse.ops.named import run

_NAME = "fused_gemm_rmsnorm"


class _RMSNorm(Function):
    """Keeps x, weight and rms_weight; and what the norm read, (..., N) in x's dtype, with the reciprocal root
    mean square of its rows in float32: further outputs of the fused kernel.

    Backward: torch's own for an RMSNorm, which stands before the GEMMs and so cannot be fused behind one;
    then two plain GEMMs and the sums of a bias.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        rms_weight: Tensor | None,
        residual_position: str,
        eps: float,
        weight_offset: float,
    ) -> Tensor:
        of_x, of_weight = ctx.needs_input_grad[:2]
        operands, options = (bias, residual, rms_weight), (residual_position,)
        y, pre, rrms = run(_NAME, x, weight, operands, options, (eps, weight_offset), saved=True)
        ctx.before = residual_position == "before"
        ctx.weight_offset = weight_offset
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.residual = spread_of(residual, y)
        ctx.keeps_middle = any(ctx.needs_input_grad[: 4 if ctx.before else 3])
        kept = (x if of_weight else None, weight if of_x else None, rms_weight)
        ctx.save_for_backward(*kept, pre, rrms)
        result: Tensor = y
        return result

    @staticmethod
    @once(_NAME)
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight, rms_weight, pre, rrms = ctx.saved_tensors
        of_x, of_weight, of_bias, of_residual, of_rms_weight, *_ = ctx.needs_input_grad
        inside = of_x or of_weight or of_bias or (of_residual and ctx.before)
        d = d_rms_weight = None
        if inside or of_rms_weight:
            asked = [inside, of_rms_weight]
            d, d_rms_weight = of_norm(grad, pre, rrms, rms_weight, ctx.weight_offset, asked)
        dx = dw = dbias = dresidual = None
        if inside:
            dx, dw = of_product(d, x, weight, of_x, of_weight)
            dbias = of_row(d, ctx.bias_dtype) if of_bias else None
        if of_residual:
            dresidual = of_tile(d if ctx.before else grad, ctx.residual)
        of_rms = d_rms_weight.to(rms_weight.dtype) if of_rms_weight else None
        return dx, dw, dbias, dresidual, of_rms, None, None, None


def of_norm(
    grad: Tensor, pre: Tensor, rrms: Tensor, weight: Tensor | None, offset: float, asked: list[bool]
) -> tuple[Any, Any]:
    """The gradients of what the norm read, in its dtype, and of its weight, as far as asked."""
    dtype = pre.dtype
    if not grad.is_cuda or (weight is not None and (offset != 0.0 or weight.dtype != dtype)):
        grad, pre = grad.float(), pre.float()
        weight = None if weight is None else weight.float() + offset
    rrms = rrms.unsqueeze(-1)
    if grad.is_cuda:
        backward = torch.ops.aten._fused_rms_norm_backward
        d, d_weight = backward(grad.contiguous(), pre, [pre.shape[-1]], rrms, weight, asked)
    else:
        d, d_weight = _composed(grad, pre, rrms, weight)
    return d.to(dtype) if asked[0] else None, d_weight


def _composed(grad: Tensor, pre: Tensor, rrms: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same for CPUs, for which torch has no function: in float32."""
    normed = pre * rrms
    of_normed = grad if weight is None else grad * weight
    d = rrms * (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True))
    return d, of_row(grad * normed, torch.float32)


def rmsnorm(*arguments: Any) -> Tensor:
    y: Tensor = _RMSNorm.apply(*arguments)
    return y
