"""MLPs of two hidden layers as graph networks spell them in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.programs.dtypes import DTYPES
from bench.workloads import NetworkWorkload


@dataclass(frozen=True)
class NetworkInputs:
    """x (M, K), each layer's weight (N, K) and bias (N,), norm_weight (N,), norm_bias (N,)."""

    x: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]
    norm_weight: Tensor
    norm_bias: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x, *(t for layer in self.layers for t in layer), self.norm_weight, self.norm_bias)

    def gemms(self) -> list[tuple[Tensor, Tensor]]:
        found, x = [], self.x
        for weight, bias in self.layers:
            found.append((x, weight.t()))
            x = F.relu(F.linear(x, weight, bias))
        return found

    def rows(self, rows: Tensor) -> NetworkInputs:
        """The same program on some of the rows."""
        return replace(self, x=self.x[rows])

    def to(self, dtype: torch.dtype) -> NetworkInputs:
        layers = tuple((weight.to(dtype), bias.to(dtype)) for weight, bias in self.layers)
        return NetworkInputs(self.x.to(dtype), layers, self.norm_weight.to(dtype), self.norm_bias.to(dtype))


def make_inputs(w: NetworkWorkload, seed: int, device: str) -> NetworkInputs:
    """Random inputs whose GEMMs have a variance of about one."""
    generator = torch.Generator(device).manual_seed(seed) if device != "meta" else None
    dtype = DTYPES[w.dtype]

    def normal(*size: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*size, device=device, generator=generator) * scale).to(dtype)

    sizes = ((w.h, w.k), (w.h, w.h), (w.n, w.h))
    layers = tuple((normal(n, k, scale=k**-0.5), normal(n)) for n, k in sizes)
    return NetworkInputs(normal(w.m, w.k), layers, normal(w.n), normal(w.n))


def program(w: NetworkWorkload) -> Callable[..., Tensor]:
    """A function of NetworkInputs.tensors(), in order.  On float64 inputs it is the reference."""
    n, eps = w.n, w.eps

    def network(x, w0, b0, w1, b1, w2, b2, norm_weight, norm_bias):
        h = F.relu(F.linear(x, w0, b0))
        h = F.relu(F.linear(h, w1, b1))
        return F.layer_norm(F.linear(h, w2, b2), (n,), norm_weight, norm_bias, eps) + x

    return network
