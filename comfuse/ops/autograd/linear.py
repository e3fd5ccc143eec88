"""Gradients of fused_gemm."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from comfuse.ops.autograd.derivatives import FROM_RESULT, times_derivative
from comfuse.ops.autograd.function import Gradients, of_product, of_row, of_tile, once, spread_of
from comfuse.ops.named import run

_NAME = "fused_gemm"


class _Linear(Function):
    """Keeps x and weight; with an activation also what it read, (..., N) in x's dtype, a second output of the
    fused kernel, or its own result where that tells the derivative.

    Backward: the activation's is one elementwise kernel, then two plain GEMMs and the sums of a bias.  There
    is nothing to fuse them with: the elementwise part stands before the GEMMs, whose results go to others.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        activation: str | None,
    ) -> Tensor:
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        inside = of_x or of_weight or of_bias
        from_result = activation in FROM_RESULT and residual is None
        kept = None
        ctx.keeps_middle = False
        if activation is None or from_result or not inside:
            y = run(_NAME, x, weight, (bias, residual), (activation,))
            kept = y if from_result else None
        else:
            y, kept = run(_NAME, x, weight, (bias, residual), (activation,), saved=True)
            ctx.keeps_middle = True
        ctx.activation, ctx.from_result = activation, from_result
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.residual = spread_of(residual, y)
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None, kept)
        return y

    @staticmethod
    @once(_NAME)
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight, kept = ctx.saved_tensors
        of_x, of_weight, of_bias, of_residual, _ = ctx.needs_input_grad
        dx = dw = dbias = None
        if of_x or of_weight or of_bias:
            d = grad if kept is None else times_derivative(ctx.activation, grad, kept, result=ctx.from_result)
            dx, dw = of_product(d, x, weight, of_x, of_weight)
            dbias = of_row(d, ctx.bias_dtype) if of_bias else None
        return dx, dw, dbias, of_tile(grad, ctx.residual) if of_residual else None, None


def linear(*arguments: Any) -> Tensor:
    y: Tensor = _Linear.apply(*arguments)
    return y
