"""Linear layer, activation and residual in one kernel."""

from __future__ import annotations

from torch import Tensor

from comfuse.generator import catalog
from comfuse.generator.spec import Space
from comfuse.ops import autograd
from comfuse.ops.faults import Argument
from comfuse.ops.named import NamedOp


def fused_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``activation(x @ weight.T + bias) + residual``, as one kernel on Hopper GPUs.

    Everything behind the GEMM is computed in float32 and rounded once, at the store.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it.
        bias: (N,).
        activation: None, or the name of an elementwise op of one argument, among them ``"relu"``, ``"gelu"``
            (with erf), ``"gelu_tanh"``, ``"silu"``, ``"tanh"``, ``"sigmoid"``, ``"softplus"``.
        residual: (..., N) or what broadcasts to it, or (M, N) with M the product of x's leading sizes.
        out: (..., N), x's dtype: written instead of a new tensor.  Its rows may be walked in two strides and
            its columns in one (a slice of a larger tensor, a transposed one); it shares no memory with the
            other arguments, and none of these may require a gradient.

        ``bias`` and ``residual`` may each be bfloat16, float16 or float32.
        ``x`` and ``weight`` may be contiguous along either of their dimensions.  They, and tiles, are copied
        first (counted) where one stride cannot walk their rows or these are not aligned to 16 bytes.

    Returns:
        (..., N), x's dtype; ``out`` if it was given.  It is empty if x has no rows; if K is 0 the products
        sum to zero.

    Differentiable, once.  Where a gradient is wanted, x and weight are kept for the backward, and with an
    activation one (..., N) in x's dtype.

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
    if out is not None:
        return _OP.into(out, x, weight, (bias, residual), (activation,))
    return _OP(x, weight, (bias, residual), (activation,))


_OP = NamedOp(
    "fused_gemm",
    catalog.linear,
    [Argument("bias", Space.ROW), Argument("residual", Space.TILE)],
    autograd.linear,
    options={"activation": (None, *catalog.ACTIVATIONS)},
    saved=1,
)
