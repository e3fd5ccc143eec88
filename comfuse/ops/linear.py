"""Linear layer, activation and residual in one kernel."""

from __future__ import annotations

from operator import index

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
from comfuse.reference import ELEMENTWISE, SPEC_DTYPES

_OP = "fused_gemm"
_Dtype = torch.dtype | None
_TEXTS: dict[tuple[object, ...], str] = {}


def fused_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """``activation(x @ weight.T + bias) + residual``, as one kernel on Hopper GPUs.

    Everything behind the GEMM is computed in float32 and rounded once, at the store.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it.
        bias: (N,).
        activation: None, or the name of an elementwise op of one argument, among them ``"relu"``, ``"gelu"``
            (with erf), ``"gelu_tanh"``, ``"silu"``, ``"tanh"``, ``"sigmoid"``, ``"softplus"``.
        residual: (..., N) with the leading sizes of x, or (M, N) with M their product.

        ``bias`` and ``residual`` may each be bfloat16, float16 or float32.  ``x``, ``weight`` and
        ``residual`` are copied first (counted) where their rows cannot be walked with one stride or are not
        aligned to 16 bytes.

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
        if torch.is_grad_enabled() and needs_gradient(x, weight, bias, residual):
            differentiable(_OP, x, weight, {"bias": bias}, {"residual": residual})
            return _eager(x, weight, bias, activation, residual)
        n, k = weight.shape
        if k == 0:
            x, weight, k = no_products(_OP, x, weight)
        key = (
            n,
            k,
            x.dtype,
            None if bias is None else bias.dtype,
            activation,
            None if residual is None else residual.dtype,
        )
        if torch.compiler.is_compiling():
            text = _text(index(n), index(k), *key[2:])  # index: the shape of a weight is no symbol
        else:
            text = _TEXTS.get(key) or _remember(key)
        operands = [t for t in (bias, residual) if t is not None]
        return FIXED[len(operands)](text, x, weight, *operands)
    except Exception as e:
        if activation is not None and activation not in catalog.ACTIVATIONS:
            allowed = f"None, {', '.join(catalog.ACTIVATIONS)}"
            raise ArgumentError(_OP, "activation", repr(activation), allowed) from None
        raise explain(_OP, e, x, weight, {"bias": bias}, {"residual": residual}) from None


def _remember(key: tuple[object, ...]) -> str:
    return _TEXTS.setdefault(key, _text(*key))  # type: ignore[arg-type]


@constant_when_traced
def _text(n: int, k: int, dtype: torch.dtype, bias: _Dtype, activation: str | None, residual: _Dtype) -> str:
    names = {"bias": bias, "residual": residual}
    operands = {name: None if value is None else SPEC_DTYPES[value] for name, value in names.items()}
    return catalog.linear(n, k, AB_DTYPES[dtype], activation=activation, **operands).text()


def _eager(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None
) -> Tensor:
    y = F.linear(x, weight).float()
    if bias is not None:
        y = y + bias
    if activation is not None:
        y = ELEMENTWISE[activation](y)
    if residual is not None:
        y = y + residual.reshape(y.shape)
    return y.to(x.dtype)
