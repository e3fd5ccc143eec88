"""Linear layer, norm, and quantisation of each row to 8 bits, in one kernel."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from comfuse.errors import ArgumentError
from comfuse.generator import catalog
from comfuse.generator.spec import DType, FusedSpec, Space
from comfuse.ops.faults import Argument
from comfuse.ops.named import NamedOp
from comfuse.reference import SPEC_DTYPES, TORCH_DTYPES

_NAME = "fused_gemm_quantize"


def fused_gemm_quantize(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Literal["layernorm", "rmsnorm"] | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """``y = norm(x @ weight.T + bias)`` quantised row by row, as one kernel on Hopper GPUs.

    ``scale = max(abs(y)) / largest`` along each row, with ``largest`` the largest number of ``dtype`` (448
    for float8_e4m3fn), and ``q = (y / scale).to(dtype)``, so that ``q.float() * scale`` is about y.  y is
    float32, never rounded in between; the division is a multiplication by ``1 / scale``, in float32.

    A row of zeros, or one so small that its scale rounds to 0, has a scale of 1.  A row with a NaN has a
    scale of NaN and is all NaN; in one with an infinity the scale is infinite, the finite values are 0 and
    the infinite ones NaN.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it.
        bias: (N,).
        norm: None, ``"layernorm"`` or ``"rmsnorm"``, along each row.
        norm_weight: (N,), only with a norm.
        norm_bias: (N,), only with ``"layernorm"``.
        eps: added to the variance, or to the mean square; only with a norm.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.

        ``bias``, ``norm_weight`` and ``norm_bias`` may each be bfloat16, float16 or float32.
        ``x`` and ``weight`` may be contiguous along either of their dimensions.  They, and tiles, are copied
        first (counted) where one stride cannot walk their rows or these are not aligned to 16 bytes.

    Returns:
        q, (..., N) in ``dtype``, and scale, (..., 1) in float32.  Both are empty if x has no rows; if K is 0
        the products sum to zero.

    Not differentiable: raises GradientError where an input requires a gradient.

    Runs torch's own ops, and counts that in ``comfuse.fallbacks``, where the planner refuses the sizes (K not
    a multiple of 8, a row too wide), the GPU is not a Hopper, or nothing can be compiled.  CPU tensors are
    computed in float32, which is not counted.

    Under torch.autocast, x and weight are converted to its dtype unless they already have one 16-bit dtype.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument that the op cannot take.
        GradientError: an input requires a gradient.
        BuildError, LoadError, LaunchError: the kernel does not compile, or cannot be run.
        CacheError, ToolchainError: nothing can be built and ``COMFUSE_JIT`` is require.
        FallbackError: it would fall back and ``COMFUSE_STRICT`` is 1.
    """
    if norm_weight is not None and norm is None:
        raise ArgumentError(_NAME, "norm_weight", "given", "None, as there is no norm")
    if norm_bias is not None and norm != "layernorm":
        raise ArgumentError(_NAME, "norm_bias", "given", f"None, as the norm is {norm!r}")
    scalars = () if norm is None else (eps,)
    q, scale = _OP(x, weight, (bias, norm_weight, norm_bias), (norm, dtype), scalars)
    return q, scale.unsqueeze(-1)


def _program(n: int, k: int, ab: DType, /, *, dtype: torch.dtype, **rest: Any) -> FusedSpec:
    return catalog.quantize(n, k, ab, out=SPEC_DTYPES[dtype], **rest)


_OP = NamedOp(
    _NAME,
    _program,
    [Argument("bias", Space.ROW), Argument("norm_weight", Space.ROW), Argument("norm_bias", Space.ROW)],
    options={
        "norm": (None, "layernorm", "rmsnorm"),
        "dtype": tuple(TORCH_DTYPES[dtype] for dtype in catalog.LARGEST),
    },
    scalars=("eps",),
    outputs=2,
)
