"""The graphs of bench.workloads.graphs as a user would write them in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.programs.dtypes import DTYPES
from bench.workloads import GraphWorkload

FP8 = torch.float8_e4m3fn


def softmax(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(F.linear(x, w), -1)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def relu_sum(x: Tensor, w: Tensor) -> Tensor:
    return _wide(F.relu(F.linear(x, w))).sum()


def logsumexp(x: Tensor, w: Tensor) -> Tensor:
    return torch.logsumexp(_wide(F.linear(x, w)), -1)


def gelu_backward(dy: Tensor, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Of y = gelu(h) W^T, h = ... + bias: the gradients of h and of that bias.  W is (K, N) here."""
    dh = torch.ops.aten.gelu_backward(dy @ w, h)
    return dh, dh.sum(0)


def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def gemma(x: Tensor, w: Tensor, residual: Tensor, post: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
    """A sublayer's norm, the residual, the next sublayer's norm: both sums go on."""

    def norm(z: Tensor, weight: Tensor) -> Tensor:
        f = _wide(z)
        f = f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-6)
        return (f * (1 + weight.to(f.dtype))).to(z.dtype)

    h = residual + norm(F.linear(x, w), post)
    return h, norm(h, pre)


def quantise(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Per-row fp8 with its scale; in float64 without the rounding."""
    f = _wide(F.linear(x, w))
    scale = f.abs().amax(-1, keepdim=True) / 448
    q = f / scale
    return q if x.dtype == torch.float64 else q.to(FP8), scale


def bias_gelu(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, bias), approximate="tanh")


def bias_relu(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.linear(x, w, bias))


@dataclass(frozen=True)
class Graph:
    """``arguments``: the kinds of the function's tensors: "x" (M, K), "weight" (N, K), "weight-kn" (K, N),
    "tile" (M, N), "row" (N,).
    """

    function: Callable[..., Tensor | tuple[Tensor, ...]]
    arguments: tuple[str, ...] = ("x", "weight")


GRAPHS: dict[str, Graph] = {
    "softmax": Graph(softmax),
    "relu_sum": Graph(relu_sum),
    "logsumexp": Graph(logsumexp),
    "gelu_backward": Graph(gelu_backward, ("x", "weight-kn", "tile")),
    "swiglu": Graph(swiglu, ("x", "weight", "weight")),
    "gemma": Graph(gemma, ("x", "weight", "tile", "row", "row")),
    "quantise": Graph(quantise),
    "bias_gelu": Graph(bias_gelu, ("x", "weight", "row")),
    "bias_relu": Graph(bias_relu, ("x", "weight", "row")),
}


@dataclass(frozen=True)
class GraphInputs:
    kinds: tuple[str, ...]
    values: tuple[Tensor, ...]

    @property
    def x(self) -> Tensor:
        return self.values[0]

    def tensors(self) -> tuple[Tensor, ...]:
        return self.values

    def gemms(self) -> list[tuple[Tensor, Tensor]]:
        return [
            (self.x, t if kind == "weight-kn" else t.t())
            for kind, t in zip(self.kinds, self.values, strict=True)
            if kind.startswith("weight")
        ]

    def rows(self, rows: Tensor) -> GraphInputs:
        pairs = zip(self.kinds, self.values, strict=True)
        return GraphInputs(self.kinds, tuple(t[rows] if kind in ("x", "tile") else t for kind, t in pairs))

    def to(self, dtype: torch.dtype) -> GraphInputs:
        return GraphInputs(self.kinds, tuple(t.to(dtype) for t in self.values))


def make_inputs(w: GraphWorkload, seed: int, device: str) -> GraphInputs:
    """Random inputs whose GEMM has unit variance."""
    generator = torch.Generator(device).manual_seed(seed) if device != "meta" else None
    kinds = GRAPHS[w.graph].arguments
    sizes = {
        "x": (w.m, w.k),
        "weight": (w.n, w.k),
        "weight-kn": (w.k, w.n),
        "tile": (w.m, w.n),
        "row": (w.n,),
    }

    def normal(kind: str) -> Tensor:
        drawn = torch.randn(sizes[kind], device=device, generator=generator)
        return (drawn / w.k**0.5 if kind.startswith("weight") else drawn).to(DTYPES[w.dtype])

    return GraphInputs(kinds, tuple(map(normal, kinds)))
