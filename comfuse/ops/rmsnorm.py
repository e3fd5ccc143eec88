"""Linear layer, residual and RMSNorm in one kernel."""

from __future__ import annotations

from operator import index
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse.errors import ArgumentError
from comfuse.generator import catalog
from comfuse.ops.named import (
    AB_DTYPES,
    constant_when_traced,
    differentiable,
    explain,
    needs_gradient,
    no_products,
)
from comfuse.ops.schema import FIXED
from comfuse.reference import SPEC_DTYPES

_OP = "fused_gemm_rmsnorm"
_POSITIONS = ("before", "after")
_Dtype = torch.dtype | None
_TEXTS: dict[tuple[object, ...], str] = {}


def fused_gemm_rmsnorm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    rms_weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    residual_position: Literal["before", "after"] = "before",
) -> Tensor:
    """A linear layer and RMSNorm, as one kernel on Hopper GPUs.

    With ``rms(z) = z * rsqrt(mean(z * z) + eps) * (rms_weight + weight_offset)`` along each row of N values:

    * ``residual_position="before"``: ``rms(x @ weight.T + bias + residual)``
    * ``residual_position="after"``: ``rms(x @ weight.T + bias) + residual``

    Everything behind the GEMM is computed in float32 and rounded once, at the store.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it.
        bias: (N,).
        residual: (..., N) with the leading sizes of x, or (M, N) with M their product.
        rms_weight: (N,).
        eps: added to the mean square.
        weight_offset: added to ``rms_weight`` (1.0 for models that store the weight minus one); without
            ``rms_weight`` it has no effect.
        residual_position: where the residual is added.

        ``bias``, ``residual`` and ``rms_weight`` may each be bfloat16, float16 or float32.  ``x``, ``weight``
        and ``residual`` are copied first (counted) where their rows cannot be walked with one stride or are
        not aligned to 16 bytes.

    Returns:
        (..., N), x's dtype.  It is empty if x has no rows; if K is 0 the products sum to zero.

    Runs torch's own ops, and counts that in ``comfuse.fallbacks``, where an input requires a gradient, N or K
    is not a multiple of 8, the GPU is not a Hopper, or nothing can be compiled.  CPU tensors are computed in
    float32, which is not counted.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument that the op cannot take.
        BuildError, CacheError, LoadError, LaunchError: the kernel cannot be built or run.
        FallbackError: it would fall back and ``COMFUSE_STRICT`` is 1.
    """
    try:
        if torch.is_grad_enabled() and needs_gradient(x, weight, bias, residual, rms_weight):
            differentiable(_OP, x, weight, {"bias": bias, "rms_weight": rms_weight}, {"residual": residual})
            return _eager(x, weight, bias, residual, rms_weight, eps, weight_offset, residual_position)
        n, k = weight.shape
        if k == 0:
            x, weight, k = no_products(_OP, x, weight)
        key = (
            n,
            k,
            x.dtype,
            None if bias is None else bias.dtype,
            None if residual is None else residual.dtype,
            None if rms_weight is None else rms_weight.dtype,
            residual_position,
        )
        if torch.compiler.is_compiling():
            text = _text(index(n), index(k), *key[2:])  # index: the shape of a weight is no symbol
        else:
            text = _TEXTS.get(key) or _remember(key)
        operands = [t for t in (bias, residual, rms_weight) if t is not None]
        return FIXED[len(operands)](text, x, weight, *operands, eps, weight_offset)
    except Exception as e:
        if residual_position not in _POSITIONS:
            raise ArgumentError(
                _OP, "residual_position", repr(residual_position), "'before', 'after'"
            ) from None
        rows = {"bias": bias, "rms_weight": rms_weight}
        raise explain(_OP, e, x, weight, rows, {"residual": residual}) from None


def _remember(key: tuple[object, ...]) -> str:
    return _TEXTS.setdefault(key, _text(*key))  # type: ignore[arg-type]


@constant_when_traced
def _text(
    n: int,
    k: int,
    dtype: torch.dtype,
    bias: _Dtype,
    residual: _Dtype,
    rms_weight: _Dtype,
    residual_position: Literal["before", "after"],
) -> str:
    names = {"bias": bias, "residual": residual, "rms_weight": rms_weight}
    operands = {name: None if value is None else SPEC_DTYPES[value] for name, value in names.items()}
    spec = catalog.rmsnorm(n, k, AB_DTYPES[dtype], residual_position=residual_position, **operands)
    return spec.text()


def _eager(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    rms_weight: Tensor | None,
    eps: float,
    weight_offset: float,
    residual_position: str,
) -> Tensor:
    if residual_position not in _POSITIONS:
        raise ValueError(residual_position)
    y = F.linear(x, weight).float()
    if bias is not None:
        y = y + bias
    if residual is not None:
        residual = residual.reshape(y.shape)
        if residual_position == "before":
            y = y + residual
    y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + eps)
    if rms_weight is not None:
        y = y * (rms_weight.float() + weight_offset)
    if residual is not None and residual_position == "after":
        y = y + residual
    return y.to(x.dtype)
