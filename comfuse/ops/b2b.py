"""Two linear layers back to back in one kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import DType, Space
from comfuse.ops import autograd
from comfuse.ops.autograd import ways
from comfuse.ops.faults import Argument
from comfuse.ops.linear import fused_gemm
from comfuse.ops.named import NamedOp


def fused_b2b_gemm(
    x: Tensor,
    w0: Tensor,
    w1: Tensor,
    b0: Tensor | None = None,
    b1: Tensor | None = None,
    activation0: str | None = None,
    activation1: str | None = None,
    residual0: Tensor | None = None,
    residual1: Tensor | None = None,
) -> Tensor:
    """Two times :func:`fused_gemm`, the second of the first one's result, as one kernel on Hopper GPUs.

    ``middle = activation0(x @ w0.T + b0) + residual0`` never leaves the chip; it is rounded once, to x's
    dtype.  ``activation1(middle @ w1.T + b1) + residual1`` is rounded at the store.  All else is computed in
    float32.

    Args:
        x: (..., K), bfloat16 or float16.
        w0: (H, K), x's dtype, as nn.Linear has it.
        w1: (N, H), x's dtype.
        b0: (H,).
        b1: (N,).
        activation0, activation1: None, or the name of an elementwise op of one argument, as for
            :func:`fused_gemm`.
        residual0: (..., H) or what broadcasts to it, or (M, H) with M the product of x's leading sizes.
        residual1: (..., N), likewise.

        Biases and residuals may each be bfloat16, float16 or float32.  ``x``, the weights and tiles are
        copied first (counted) where their rows are not contiguous, one stride cannot walk these, or they are
        not aligned to 16 bytes.

    Returns:
        (..., N), x's dtype.  It is empty if x has no rows; if K is 0 the products of x sum to zero.

    Differentiable, once, in either of the two ways of :func:`fused_mlp`.  With ``activation1`` or
    ``residual0`` it is always that in which two calls of :func:`fused_gemm` run instead of the one kernel,
    and keep what these keep: the middle is stored.

    Runs a kernel for each layer, and counts that in ``comfuse.fallbacks``, where the planner refuses the
    sizes (one that is no multiple of 8, N beyond 256, weights too large to pass through the chip for every
    block of rows) or ``COMFUSE_CHAINS`` is 0; torch's own ops, counted too, where the GPU is not a Hopper or
    nothing can be compiled.  CPU tensors are computed in float32, which is not counted.

    Under torch.autocast, x and the weights are converted to its dtype unless they already have one 16-bit
    dtype.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument that the op cannot take.
        GradientError: a gradient is differentiated again.
        BuildError, LoadError, LaunchError: the kernel does not compile, or cannot be run.
        CacheError, ToolchainError: nothing can be built and ``COMFUSE_JIT`` is require.
        FallbackError: it would fall back and ``COMFUSE_STRICT`` is 1.
    """
    return _OP(x, w0, (b0, residual0, w1, b1, residual1), (activation0, activation1))  # type: ignore[no-any-return]


def _unfused(
    x: Tensor,
    w0: Tensor,
    b0: Tensor | None,
    residual0: Tensor | None,
    w1: Tensor,
    b1: Tensor | None,
    residual1: Tensor | None,
    activation0: str | None,
    activation1: str | None,
) -> Tensor:
    if activation1 is None and residual0 is None:
        layers = (x, w0, b0, w1, b1, residual1, None, None, activation0, None, "before")
        way = ways.way_of(*layers)
        if way != ways.KEPT:
            return autograd.b2b(*layers, 0.0, way == ways.ANEW_CHAIN)
    middle = fused_gemm(x, w0, b0, activation0, residual0)
    return fused_gemm(middle, w1, b1, activation1, residual1)


def _program(n: int, k: int, h: int, dtype: DType, *, layouts: catalog.Layouts, **rest: Any) -> ChainSpec:
    return catalog.b2b(n, k, h, dtype, strided=layouts.strided, **rest)


_OP = NamedOp(
    "fused_b2b_gemm",
    _program,
    [
        Argument("b0", Space.ROW),
        Argument("residual0", Space.TILE),
        Argument("w1", None, required=True, begins_layer=True),
        Argument("b1", Space.ROW),
        Argument("residual1", Space.TILE),
    ],
    _unfused,
    weight="w0",
    options=dict.fromkeys(("activation0", "activation1"), (None, *catalog.ACTIVATIONS)),
)
