"""Linear layer and softmax, or its logarithm's normaliser, in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from comfuse.generator import catalog
from comfuse.generator.spec import Space
from comfuse.ops import autograd
from comfuse.ops.faults import FLOATS, Argument
from comfuse.ops.named import NamedOp


def fused_gemm_softmax(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    mask: Tensor | None = None,
) -> Tensor:
    """``softmax((x @ weight.T + bias) * scale + mask)`` along each row, as one kernel on Hopper GPUs.

    Everything behind the GEMM is computed in float32 and rounded once, at the store.  The row's largest value
    is subtracted first, as in torch.softmax.  A row that is all -inf, or has a NaN or a +inf, is NaN.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it.
        bias: (N,), bfloat16, float16 or float32.
        scale: what the logits are multiplied by.
        mask: (..., N) or what broadcasts to it, or (M, N) with M the product of x's leading sizes.  A
            bfloat16, float16 or float32 mask is added; a bool one keeps the elements where it is True and
            sets the others to -inf, as in scaled_dot_product_attention.

        ``x`` and ``weight`` may be contiguous along either of their dimensions.  They, and tiles, are copied
        first (counted) where one stride cannot walk their rows or these are not aligned to 16 bytes.

    Returns:
        (..., N), x's dtype.  It is empty if x has no rows; if K is 0 the products sum to zero.

    Differentiable, once.  Where a gradient is wanted, x, weight and the result are kept for the backward.

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
    return _SOFTMAX(x, weight, (bias, mask), (), (scale,))


def fused_gemm_logsumexp(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``logsumexp(x @ weight.T + bias)`` along each row, as one kernel on Hopper GPUs.

    The logits are never stored: the result is what leaves the kernel.  It is computed in float32, and gives
    what torch.logsumexp does also for infinities: -inf for a row that is all -inf, +inf for one that has a
    +inf; a NaN gives NaN.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it.
        bias: (N,), bfloat16, float16 or float32.

        ``x`` and ``weight`` may be contiguous along either of their dimensions.  They, and tiles, are copied
        first (counted) where one stride cannot walk their rows or these are not aligned to 16 bytes.

    Returns:
        The leading sizes of x, float32.  It is empty if x has no rows; if K is 0 the products sum to zero.

    Differentiable, once.  Where a gradient is wanted, x, weight, bias and the result are kept for the
    backward: a fused kernel computes the logits anew, and turns them into their gradient, (..., N) in x's
    dtype for as long as the backward takes.

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
    return _LOGSUMEXP(x, weight, (bias,))


_SOFTMAX = NamedOp(
    "fused_gemm_softmax",
    catalog.softmax,
    [Argument("bias", Space.ROW), Argument("mask", Space.TILE, (*FLOATS, torch.bool))],
    autograd.softmax,
    scalars=("scale",),
)
_LOGSUMEXP = NamedOp(
    "fused_gemm_logsumexp", catalog.logsumexp, [Argument("bias", Space.ROW)], autograd.logsumexp
)
