"""Linear layer, residual and LayerNorm in one kernel."""

from __future__ import annotations

from operator import index

import torch
import torch.nn.functional as F
from torch import Tensor

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

_OP = "fused_gemm_layernorm"
_Dtype = torch.dtype | None
_TEXTS: dict[tuple[object, ...], str] = {}


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
        residual: (..., N) with the leading sizes of x, or (M, N) with M their product.
        ln_weight: (N,).
        ln_bias: (N,).
        eps: added to the variance.

        ``bias``, ``residual``, ``ln_weight`` and ``ln_bias`` may each be bfloat16, float16 or float32.
        ``x``, ``weight`` and ``residual`` are copied first (counted) where their rows cannot be walked with
        one stride or are not aligned to 16 bytes.

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
        if torch.is_grad_enabled() and needs_gradient(x, weight, bias, residual, ln_weight, ln_bias):
            differentiable(
                _OP,
                x,
                weight,
                {"bias": bias, "ln_weight": ln_weight, "ln_bias": ln_bias},
                {"residual": residual},
            )
            return _eager(x, weight, bias, residual, ln_weight, ln_bias, eps)
        n, k = weight.shape
        if k == 0:
            x, weight, k = no_products(_OP, x, weight)
        key = (
            n,
            k,
            x.dtype,
            None if bias is None else bias.dtype,
            None if residual is None else residual.dtype,
            None if ln_weight is None else ln_weight.dtype,
            None if ln_bias is None else ln_bias.dtype,
        )
        if torch.compiler.is_compiling():
            text = _text(index(n), index(k), *key[2:])  # index: the shape of a weight is no symbol
        else:
            text = _TEXTS.get(key) or _remember(key)
        operands = [t for t in (bias, residual, ln_weight, ln_bias) if t is not None]
        return FIXED[len(operands)](text, x, weight, *operands, eps)
    except Exception as e:
        rows = {"bias": bias, "ln_weight": ln_weight, "ln_bias": ln_bias}
        raise explain(_OP, e, x, weight, rows, {"residual": residual}) from None


def _remember(key: tuple[object, ...]) -> str:
    return _TEXTS.setdefault(key, _text(*key))  # type: ignore[arg-type]


@constant_when_traced
def _text(
    n: int, k: int, dtype: torch.dtype, bias: _Dtype, residual: _Dtype, ln_weight: _Dtype, ln_bias: _Dtype
) -> str:
    names = {"bias": bias, "residual": residual, "ln_weight": ln_weight, "ln_bias": ln_bias}
    operands = {name: None if value is None else SPEC_DTYPES[value] for name, value in names.items()}
    return catalog.layernorm(n, k, AB_DTYPES[dtype], **operands).text()


def _eager(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    ln_weight: Tensor | None,
    ln_bias: Tensor | None,
    eps: float,
) -> Tensor:
    y = F.linear(x, weight).float()
    if bias is not None:
        y = y + bias
    if residual is not None:
        y = y + residual.reshape(y.shape)
    scale = None if ln_weight is None else ln_weight.float()
    shift = None if ln_bias is None else ln_bias.float()
    return F.layer_norm(y, y.shape[-1:], scale, shift, eps).to(x.dtype)
