"""MLPs as their models spell them in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.programs.dtypes import DTYPES
from bench.workloads import ChainWorkload

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "silu": F.silu}


@dataclass(frozen=True)
class ChainInputs:
    """x (M, K), w0 (H, K), b0 (H,), w1 (N, H), b1 (N,), norm_weight (N,), norm_bias (N,)."""

    activation: str
    x: Tensor
    w0: Tensor
    b0: Tensor
    w1: Tensor
    b1: Tensor
    norm_weight: Tensor | None
    norm_bias: Tensor | None

    def tensors(self) -> tuple[Tensor | None, ...]:
        return (self.x, self.w0, self.b0, self.w1, self.b1, self.norm_weight, self.norm_bias)

    def gemms(self) -> list[tuple[Tensor, Tensor]]:
        middle = ACTIVATIONS[self.activation](F.linear(self.x, self.w0, self.b0))
        return [(self.x, self.w0.t()), (middle, self.w1.t())]

    def rows(self, rows: Tensor) -> ChainInputs:
        """The same program on some of the rows."""
        return ChainInputs(self.activation, self.x[rows], *self.tensors()[1:])  # type: ignore[arg-type]

    def to(self, dtype: torch.dtype) -> ChainInputs:
        return ChainInputs(self.activation, *(None if t is None else t.to(dtype) for t in self.tensors()))  # type: ignore[arg-type]


def make_inputs(w: ChainWorkload, seed: int, device: str) -> ChainInputs:
    """Random inputs whose GEMMs have a variance of about one."""
    generator = torch.Generator(device).manual_seed(seed) if device != "meta" else None

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=generator)

    dtype = DTYPES[w.dtype]
    vectors = [normal(w.n).to(dtype) if w.norm else None for _ in range(2)]
    return ChainInputs(
        w.activation,
        normal(w.m, w.k).to(dtype),
        (normal(w.h, w.k) / w.k**0.5).to(dtype),
        normal(w.h).to(dtype),
        (normal(w.n, w.h) / w.h**0.5).to(dtype),
        normal(w.n).to(dtype),
        *vectors,
    )


def program(w: ChainWorkload) -> Callable[..., Tensor]:
    """A function of ChainInputs.tensors(), in order.  On float64 inputs it is the reference."""
    activation, n, eps = ACTIVATIONS[w.activation], w.n, w.eps

    def mlp(x, w0, b0, w1, b1, norm_weight, norm_bias):
        return F.linear(activation(F.linear(x, w0, b0)), w1, b1)

    def edge_mlp(x, w0, b0, w1, b1, norm_weight, norm_bias):
        return F.layer_norm(mlp(x, w0, b0, w1, b1, None, None), (n,), norm_weight, norm_bias, eps) + x

    return edge_mlp if w.norm else mlp
