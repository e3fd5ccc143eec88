"""Gradients of fused_gated_gemm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from comfuse.ops.autograd.derivatives import times_derivative
from comfuse.ops.autograd.function import Gradients, of_product, of_row, once
from comfuse.ops.named import run
from comfuse.reference import ELEMENTWISE

_NAME = "fused_gated_gemm"


class _Gated(Function):
    """Keeps x and both weights; and what the activation read and the second factor, (..., N) each in x's
    dtype, further outputs of the fused kernel.

    Backward: elementwise kernels of torch's, then four plain GEMMs, of which that of the second weight adds
    to x's gradient what the first gave; and the sums of biases.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_gate: Tensor,
        weight_up: Tensor,
        bias_gate: Tensor | None,
        bias_up: Tensor | None,
        activation: str | None,
    ) -> Tensor:
        of_x, of_gate, of_up, of_bias_gate, of_bias_up, _ = ctx.needs_input_grad
        operands = (weight_up, bias_gate, bias_up)
        y, gate, up = run(_NAME, x, weight_gate, operands, (activation,), saved=True)
        ctx.activation = activation
        ctx.keeps_middle = of_x or (
            (of_gate or of_bias_gate) and (activation is not None or of_up or of_bias_up)
        )
        ctx.bias_dtypes = tuple(None if bias is None else bias.dtype for bias in (bias_gate, bias_up))
        weights = (weight_gate, weight_up) if of_x else (None, None)
        ctx.save_for_backward(x if of_gate or of_up else None, *weights, gate, up)
        result: Tensor = y
        return result

    @staticmethod
    @once(_NAME)
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight_gate, weight_up, gate, up = ctx.saved_tensors
        of_x, of_gate, of_up, of_bias_gate, of_bias_up, _ = ctx.needs_input_grad
        dx = d_gate = d_up = d_bias_gate = d_bias_up = None
        if of_x or of_gate or of_bias_gate:
            d = times_derivative(ctx.activation, grad * up, gate)
            dx, d_gate = of_product(d, x, weight_gate, of_x, of_gate)
            d_bias_gate = of_row(d, ctx.bias_dtypes[0]) if of_bias_gate else None
        if of_x or of_up or of_bias_up:
            d = grad * (gate if ctx.activation is None else ELEMENTWISE[ctx.activation](gate))
            _, d_up = of_product(d, x, None, False, of_up)
            if dx is not None:
                k = dx.shape[-1]
                m = d.shape[:-1].numel()
                dx = torch.addmm(dx.view(m, k), d.reshape(m, d.shape[-1]), weight_up).view(dx.shape)
            d_bias_up = of_row(d, ctx.bias_dtypes[1]) if of_bias_up else None
        return dx, d_gate, d_up, d_bias_gate, d_bias_up, None


def gated(*arguments: Any) -> Tensor:
    y: Tensor = _Gated.apply(*arguments)
    return y
