"""Norms behind a GEMM as their models spell them in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.programs.dtypes import DTYPES
from bench.workloads import NormWorkload


@dataclass(frozen=True)
class NormInputs:
    """x (M, K), weight (N, K), bias (N), residual (M, N), norm_weight (N), norm_bias (N)."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None
    norm_weight: Tensor
    norm_bias: Tensor | None

    def tensors(self) -> tuple[Tensor | None, ...]:
        return (self.x, self.weight, self.bias, self.residual, self.norm_weight, self.norm_bias)

    def gemms(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.x, self.weight.t())]

    def rows(self, rows: Tensor) -> NormInputs:
        """The same program on some of the rows."""
        residual = None if self.residual is None else self.residual[rows]
        return NormInputs(self.x[rows], self.weight, self.bias, residual, self.norm_weight, self.norm_bias)

    def to(self, dtype: torch.dtype) -> NormInputs:
        return NormInputs(*(None if t is None else t.to(dtype) for t in self.tensors()))  # type: ignore[arg-type]


def make_inputs(w: NormWorkload, seed: int, device: str) -> NormInputs:
    """Random inputs whose GEMM has unit variance, and a residual whose rows have different means."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype = DTYPES[w.dtype]

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=generator)

    x = normal(w.m, w.k).to(dtype)
    weight = (normal(w.n, w.k) / w.k**0.5).to(dtype)
    bias = normal(w.n).to(dtype) if w.bias else None
    residual = (normal(w.m, w.n) + 3 * normal(w.m, 1)).to(dtype) if w.residual else None
    norm_weight = normal(w.n).to(dtype)
    norm_bias = normal(w.n).to(dtype) if w.norm == "layernorm" else None
    return NormInputs(x, weight, bias, residual, norm_weight, norm_bias)


def program(w: NormWorkload) -> Callable[..., Tensor]:
    """A function of the six tensors of NormInputs, in order.

    On float64 inputs it is the reference.
    """
    n, eps, offset, before, after = w.n, w.eps, w.weight_offset, w.residual == "before", w.residual == "after"

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        z = F.linear(x, weight, bias)
        return z + residual if before else z

    def layernorm(x, weight, bias, residual, norm_weight, norm_bias):
        return F.layer_norm(linear(x, weight, bias, residual), (n,), norm_weight, norm_bias, eps)

    def rmsnorm(x, weight, bias, residual, norm_weight, norm_bias):
        y = F.rms_norm(linear(x, weight, bias, residual), (n,), norm_weight, eps)
        return y + residual if after else y

    def offset_rmsnorm(x, weight, bias, residual, norm_weight, norm_bias):
        # Gemma: in float32, rounded once; F.rms_norm has no offset.
        z = linear(x, weight, bias, residual)
        f = z if z.dtype == torch.float64 else z.float()
        f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)
        y = (f * (offset + norm_weight.to(f.dtype))).to(z.dtype)
        return y + residual if after else y

    if w.norm == "layernorm":
        if after:
            raise ValueError(f"{w.name}: a LayerNorm workload adds its residual before the norm")
        return layernorm
    return offset_rmsnorm if offset else rmsnorm
