"""Gradients of fused_gemm_colsum."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from comfuse.errors import GradientError
from comfuse.ops.autograd.derivatives import times_derivative
from comfuse.ops.autograd.function import Gradients, of_product, of_row, once, spread
from comfuse.ops.named import run

_NAME = "fused_gemm_colsum"


class _ColumnSums(Function):
    """Keeps x, weight and pre_activation.

    Backward: the activation's is one elementwise kernel, then two plain GEMMs and the sums of a bias.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        pre_activation: Tensor | None,
        activation: str | None,
    ) -> tuple[Tensor, Tensor]:
        if ctx.needs_input_grad[3]:
            raise GradientError(
                _NAME,
                "pre_activation has none here, as it would be a second derivative: pass it detached",
            )
        of_x, of_weight = ctx.needs_input_grad[:2]
        y, sums = run(_NAME, x, weight, (bias, pre_activation), (activation,))
        ctx.activation = activation
        ctx.keeps_middle = False
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None, pre_activation)
        return y, sums

    @staticmethod
    @once(_NAME)
    def backward(ctx: Any, grad: Tensor, grad_sums: Tensor) -> Gradients:
        x, weight, pre = ctx.saved_tensors
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        d = (grad + grad_sums).to(grad.dtype)
        if pre is not None:
            d = times_derivative(ctx.activation, d, spread(pre, d))
        dx, dw = of_product(d, x, weight, of_x, of_weight)
        return dx, dw, of_row(d, ctx.bias_dtype) if of_bias else None, None, None


def colsum(*arguments: Any) -> tuple[Tensor, Tensor]:
    y, sums = _ColumnSums.apply(*arguments)
    return y, sums
