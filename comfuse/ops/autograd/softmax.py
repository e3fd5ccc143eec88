"""Gradients of fused_gemm_softmax, fused_gemm_logsumexp and fused_gemm_cross_entropy."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from comfuse.generator import catalog
from comfuse.generator.spec import Space
from comfuse.ops.autograd.function import Gradients, of_product, of_row, of_tile, once, spread_of
from comfuse.ops.faults import Argument
from comfuse.ops.named import NamedOp, run

_ARGUMENTS = [
    Argument("bias", Space.ROW),
    Argument("target", Space.COLUMN, (torch.int64, torch.int32)),
    Argument("lse", Space.COLUMN),
    Argument("grad", Space.COLUMN),
]
_LOGITS = NamedOp("gradient of the logits", catalog.logits_gradient, _ARGUMENTS)
_LOGITS_AND_SUMS = NamedOp(
    "gradient of the logits and of their bias",
    partial(catalog.logits_gradient, sums=True),
    _ARGUMENTS,
    outputs=2,
)


class _Softmax(Function):
    """Keeps x, weight and the result.

    Backward: torch's own for a softmax, which stands before the GEMMs and so cannot be fused behind one; then
    two plain GEMMs and the sums of a bias.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float
    ) -> Tensor:
        of_x, of_weight = ctx.needs_input_grad[:2]
        y: Tensor = run("fused_gemm_softmax", x, weight, (bias, mask), (), (scale,))
        ctx.scale = scale
        ctx.keeps_middle = False
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.mask = spread_of(mask, y)
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None, y)
        return y

    @staticmethod
    @once("fused_gemm_softmax")
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight, y = ctx.saved_tensors
        of_x, of_weight, of_bias, of_mask, _ = ctx.needs_input_grad
        d = torch.ops.aten._softmax_backward_data(grad, y, -1, y.dtype)
        dmask = of_tile(d, ctx.mask) if of_mask else None
        dx = dw = dbias = None
        if of_x or of_weight or of_bias:
            d = d * ctx.scale
            dx, dw = of_product(d, x, weight, of_x, of_weight)
            dbias = of_row(d, ctx.bias_dtype) if of_bias else None
        return dx, dw, dbias, dmask, None


class _LogSumExp(Function):
    """Keeps x, weight, bias and the result, one float32 a row: no logits.

    Backward: a fused kernel computes the logits anew and turns them into their gradient, (..., N) in x's
    dtype, and its sums, the gradient of the bias; then two plain GEMMs.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        lse: Tensor = run("fused_gemm_logsumexp", x, weight, (bias,))
        ctx.keeps_middle = False
        ctx.save_for_backward(x, weight, bias, lse)
        return lse

    @staticmethod
    @once("fused_gemm_logsumexp")
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight, bias, lse = ctx.saved_tensors
        return _of_logits(x, weight, bias, None, lse, grad, ctx.needs_input_grad)


class _CrossEntropy(Function):
    """One loss a row.  Keeps x, weight, bias, target and the logsumexp, one float32 a row, a second output of
    the fused kernel: no logits.

    Backward: as for the logsumexp.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: float
    ) -> Tensor:
        operands = (target, bias)
        loss, lse = run("fused_gemm_cross_entropy", x, weight, operands, (), (ignore_index,), saved=True)
        ctx.ignore_index = ignore_index
        ctx.keeps_middle = False
        ctx.save_for_backward(x, weight, bias, target, lse)
        result: Tensor = loss
        return result

    @staticmethod
    @once("fused_gemm_cross_entropy")
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight, bias, target, lse = ctx.saved_tensors
        of_x, of_weight, _, of_bias, _ = ctx.needs_input_grad
        rows = target.reshape(grad.shape)
        counts = (rows >= 0) & (rows < weight.shape[0]) & (rows != ctx.ignore_index)
        grad = torch.where(counts, grad, 0.0)
        dx, dw, dbias = _of_logits(x, weight, bias, target, lse, grad, (of_x, of_weight, of_bias))
        return dx, dw, None, dbias, None


def _of_logits(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor | None,
    lse: Tensor,
    grad: Tensor,
    asked: tuple[bool, ...],
) -> Gradients:
    """The gradients of x, weight and bias, as far as asked."""
    of_x, of_weight, of_bias = asked
    operands = (bias, target, lse, grad)
    dbias = None
    if of_bias:
        assert bias is not None
        d, sums = _LOGITS_AND_SUMS(x, weight, operands)
        dbias = sums.to(bias.dtype)
    else:
        d = _LOGITS(x, weight, operands)
    return *of_product(d, x, weight, of_x, of_weight), dbias


def softmax(*arguments: Any) -> Tensor:
    y: Tensor = _Softmax.apply(*arguments)
    return y


def logsumexp(*arguments: Any) -> Tensor:
    lse: Tensor = _LogSumExp.apply(*arguments)
    return lse


def cross_entropy(*arguments: Any) -> Tensor:
    loss: Tensor = _CrossEntropy.apply(*arguments)
    return loss
