"""GEMMs back to back: two, as an MLP has them, or three, as graph networks do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.workloads.base import Workload


@dataclass(frozen=True)
class ChainWorkload(Workload):
    """``y = activation(x W0^T + b0) W1^T + b1``, with ``norm`` ``y = layer_norm(that) + x``.

    M rows, K columns of x, H columns between the GEMMs, N columns of y.
    """

    h: int = 0
    activation: Literal["gelu", "silu"] = "gelu"
    norm: bool = False
    eps: float = 1e-5
    whole = False
    axes = "M,K,H,N"
    roundings = 2

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.k}x{self.h}x{self.n}"

    @property
    def name(self) -> str:
        return f"{self.family}-{self.shape}{'-norm' if self.norm else ''}"

    @property
    def label(self) -> str:
        return f"{self.model} {self.m},{self.k},{self.h},{self.n}"

    @property
    def products(self) -> int:
        return 2

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.h * (self.k + self.n)

    @property
    def bytes_moved(self) -> float:
        """x, W0, W1, the vectors, y: what is between them never leaves the chip, and the residual is x."""
        vectors = self.h + (3 if self.norm else 1) * self.n
        return 2.0 * (self.m * (self.k + self.n) + self.h * (self.k + self.n) + vectors)


@dataclass(frozen=True)
class NetworkWorkload(Workload):
    """``y = layer_norm(relu(relu(x W0^T + b0) W1^T + b1) W2^T + b2) + x``: an MLP of two hidden layers.

    M rows, K columns of x, H columns of each hidden layer, N = K columns of y.
    """

    h: int = 0
    eps: float = 1e-5
    whole = False
    axes = "M,K,H,H,N"
    roundings = 3

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.k}x{self.h}x{self.h}x{self.n}"

    @property
    def name(self) -> str:
        return f"{self.family}-{self.shape}"

    @property
    def label(self) -> str:
        return f"{self.model} {self.m},{self.k},{self.h},{self.h},{self.n}"

    @property
    def products(self) -> int:
        return 3

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self._weights

    @property
    def bytes_moved(self) -> float:
        """x, the weights, the vectors, y; the residual is x."""
        return 2.0 * (self.m * (self.k + self.n) + self._weights + 2 * self.h + 3 * self.n)

    @property
    def _weights(self) -> int:
        return self.h * (self.k + self.h + self.n)


def _gelu(m: int, k: int, h: int, n: int, goal: float) -> ChainWorkload:
    return ChainWorkload("b2b", "GELU", m, n, k, goal=goal, against="inductor", h=h)


B2B = (
    _gelu(327680, 128, 512, 128, 3.0),
    _gelu(262144, 128, 128, 128, 2.9),
    _gelu(65536, 256, 1024, 256, 1.7),
    _gelu(1048576, 64, 256, 64, 4.5),
    ChainWorkload(
        "b2b",
        "edge MLP",
        1000000,
        128,
        128,
        goal=4.6,
        against="inductor",
        h=128,
        activation="silu",
        norm=True,
    ),
    NetworkWorkload("b2b", "MeshGraphNets edge MLP", 1000000, 128, 128, against="inductor", h=128),
)
