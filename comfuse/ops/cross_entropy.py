"""Linear layer and cross-entropy loss in one kernel."""

from __future__ import annotations

from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from comfuse.errors import ArgumentError
from comfuse.generator import catalog
from comfuse.generator.spec import Space
from comfuse.ops import autograd
from comfuse.ops.faults import Argument
from comfuse.ops.named import NamedOp
from comfuse.reference import LARGEST_EXACT

_NAME = "fused_gemm_cross_entropy"
_REDUCTIONS = ("mean", "sum", "none")


def fused_gemm_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """The cross-entropy of the logits ``x @ weight.T + bias``, as one kernel on Hopper GPUs.

    With z a row of logits and t its target: ``loss = logsumexp(z) - z[t]``.  The logits are never stored: one
    loss a row leaves the kernel, computed in float32; the reduction over the rows is torch's.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it: N classes.
        target: the leading sizes of x, int64 or int32.  N may be up to 2^24.
        bias: (N,), bfloat16, float16 or float32.
        ignore_index: rows with this target have a loss of 0; less than 2^24 either way.
        reduction: ``"none"``; ``"sum"``; ``"mean"``: the sum over the number of rows that are not ignored, so
            NaN if there are none.

        ``x`` and ``weight`` may be contiguous along either of their dimensions.  They, and tiles, are copied
        first (counted) where one stride cannot walk their rows or these are not aligned to 16 bytes.

    Returns:
        float32: of shape () or, without a reduction, the leading sizes of x.  A row whose target is neither a
        class nor ``ignore_index`` has a loss of NaN.

    Differentiable, once.  Where a gradient is wanted, x, weight, bias and target are kept for the backward,
    and one float32 a row: a fused kernel computes the logits anew, and turns them into their gradient, (...,
    N) in x's dtype for as long as the backward takes.

    Runs torch's own ops, and counts that in ``comfuse.fallbacks``, where the planner refuses the sizes (K not
    a multiple of 8, a row too wide), the GPU is not a Hopper, or nothing can be compiled.  CPU tensors are
    computed in float32, which is not counted.

    Under torch.autocast, x and weight are converted to its dtype unless they already have one 16-bit dtype.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument that the op cannot take.
        GradientError: a gradient is differentiated again.
        BuildError, LoadError, LaunchError: the kernel does not compile, or cannot be run.
        CacheError, ToolchainError: nothing can be built and ``COMFUSE_JIT`` is require.
        FallbackError: it would fall back and ``COMFUSE_STRICT`` is 1.
    """
    if reduction not in _REDUCTIONS:
        raise ArgumentError(_NAME, "reduction", repr(reduction), ", ".join(map(repr, _REDUCTIONS)))
    if not isinstance(ignore_index, int | torch.SymInt | Integral):
        raise ArgumentError(_NAME, "ignore_index", f"of type {type(ignore_index).__name__}", "an int")
    if abs(ignore_index) >= LARGEST_EXACT:  # targets are compared in float32, and others rounded to it
        raise ArgumentError(_NAME, "ignore_index", str(ignore_index), "an int less than 2^24 either way")
    loss = _OP(x, weight, (target, bias), (), (ignore_index,))
    if reduction == "none":
        return loss
    total = loss.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()


_OP = NamedOp(
    _NAME,
    catalog.cross_entropy,
    [
        Argument("target", Space.COLUMN, (torch.int64, torch.int32), required=True),
        Argument("bias", Space.ROW),
    ],
    autograd.cross_entropy,
    scalars=("ignore_index",),
    saved=1,
)
