"""Linear layer, residual and LayerNorm in one kernel."""

from __future__ import annotations

from torch import Tensor

from comfuse.generator import catalog
from comfuse.generator.spec import Space
from comfuse.ops import autograd
from comfuse.ops.faults import Argument
from comfuse.ops.named import NamedOp


def fused_gemm_layernorm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    ln_weight: Tensor | None = None,
    ln_bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``layer_norm(x @ weight.T + bias + residual) * ln_weight + ln_bias``, as one kernel on Hopper GPUs.

    The mean and the (biased) variance are those of each row of N values.  Everything behind the GEMM is
    computed in float32 and rounded once, at the store.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it.
        bias: (N,).
        residual: (..., N) or what broadcasts to it, or (M, N) with M the product of x's leading sizes.
        ln_weight: (N,).
        ln_bias: (N,).
        eps: added to the variance.

        ``bias``, ``residual``, ``ln_weight`` and ``ln_bias`` may each be bfloat16, float16 or float32.
        ``x`` and ``weight`` may be contiguous along either of their dimensions.  They, and tiles, are copied
        first (counted) where one stride cannot walk their rows or these are not aligned to 16 bytes.

    Returns:
        (..., N), x's dtype.  It is empty if x has no rows; if K is 0 the products sum to zero.

    Differentiable, once.  Where a gradient is wanted, x, weight and ln_weight are kept for the backward, and
    what the norm read: (..., N) in x's dtype, with two float32 a row.

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
    return _OP(x, weight, (bias, residual, ln_weight, ln_bias), (), (eps,))


_OP = NamedOp(
    "fused_gemm_layernorm",
    catalog.layernorm,
    [
        Argument("bias", Space.ROW),
        Argument("residual", Space.TILE),
        Argument("ln_weight", Space.ROW),
        Argument("ln_bias", Space.ROW),
    ],
    autograd.layernorm,
    scalars=("eps",),
    saved=3,
)
