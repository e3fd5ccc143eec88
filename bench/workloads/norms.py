"""GEMMs with a normalisation behind them, at the shapes of published models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from bench.workloads.base import Target, Workload

Norm = Literal["layernorm", "rmsnorm"]
ResidualPosition = Literal["before", "after"]


@dataclass(frozen=True)
class NormWorkload(Workload):
    """y = norm(x W^T + bias [+ residual]) * weight [+ shift] [+ residual]."""

    norm: Norm = "layernorm"
    bias: bool = False
    residual: ResidualPosition | None = "before"
    weight_offset: float = 0.0  # added to the norm's weight: 1.0 in Gemma
    eps: float = 1e-5
    whole = False

    @property
    def name(self) -> str:
        # One shape may stand for several programs in a family (with and without residual).
        tail = "" if self.residual else "-nores"
        return f"{self.family}-{self.shape}{tail}"

    @property
    def label(self) -> str:
        return f"{self.m},{self.n},{self.k}" + ("" if self.residual else " no residual")

    @property
    def bytes_moved(self) -> float:
        """x, W, residual, the vectors, y."""
        tiles = 2 if self.residual else 1
        vectors = int(self.bias) + (2 if self.norm == "layernorm" else 1)
        return 2.0 * (self.m * self.k + self.n * self.k + tiles * self.m * self.n + vectors * self.n)


def _postnorm(model: str, m: int, n: int, k: int, goal: float) -> NormWorkload:
    return NormWorkload("postnorm", model, m, n, k, norm="layernorm", bias=True, goal=goal)


def _narrow(model: str, m: int, n: int, k: int) -> NormWorkload:
    return NormWorkload("narrow", model, m, n, k, norm="layernorm", bias=True)


# Goals: the best prototype's ratio on the shape, plus 0.02.
POSTNORM = (
    _postnorm("BERT-base out-projection", 16384, 768, 768, 1.19),
    _postnorm("BERT-base feed-forward", 16384, 768, 3072, 1.12),
    _postnorm("BERT-large out-projection", 16384, 1024, 1024, 1.16),
    _postnorm("BERT-large feed-forward", 16384, 1024, 4096, 1.09),
    _postnorm("d = 2048 out-projection", 8192, 2048, 2048, 1.12),
    _postnorm("d = 4096 out-projection", 8192, 4096, 4096, 1.11),
    _postnorm("GraphCast edge MLP", 327680, 512, 512, 1.35),
    _postnorm("d = 256 out-projection", 65536, 256, 256, 1.40),
)

# Of the geometric means over all of them.
POSTNORM_TARGETS = (Target(1.12, "mm"), Target(1.28, "inductor"))

_TOKENS = 8192


def _olmo2(model: str, n: int, k: int, residual: ResidualPosition | None = "after") -> NormWorkload:
    return NormWorkload("rmsnorm", model, _TOKENS, n, k, norm="rmsnorm", residual=residual, eps=1e-6)


def _gemma(model: str, n: int, k: int) -> NormWorkload:
    return NormWorkload(
        "rmsnorm", model, _TOKENS, n, k, norm="rmsnorm", residual="after", weight_offset=1.0, eps=1e-6
    )


# RMSNorm on a sublayer's output, then the residual; no biases.  Gemma multiplies by 1 + weight.
RMSNORM = (
    _olmo2("OLMo-2 1B out-projection", 2048, 2048),
    _olmo2("OLMo-2 1B down", 2048, 8192),
    _olmo2("OLMo-2 7B out-projection", 4096, 4096),
    _olmo2("OLMo-2 7B down", 4096, 11008),
    _olmo2("OLMo-2 7B q-projection", 4096, 4096, residual=None),
    _olmo2("OLMo-2 13B out-projection", 5120, 5120),
    _olmo2("OLMo-2 13B down", 5120, 13824),
    _olmo2("OLMo-2 32B down", 5120, 27648),
    _olmo2("OLMo-2 32B k-projection", 1024, 5120, residual=None),
    _gemma("Gemma 2 2B out-projection", 2304, 2048),
    _gemma("Gemma 2 2B down", 2304, 9216),
    _gemma("Gemma 2 9B out-projection", 3584, 4096),
    _gemma("Gemma 2 9B down", 3584, 14336),
    _gemma("Gemma 2 27B out-projection", 4608, 4096),
    _gemma("Gemma 2 27B down", 4608, 36864),
    _gemma("Gemma 3 1B out-projection", 1152, 1024),
    _gemma("Gemma 3 1B down", 1152, 6912),
    _gemma("Gemma 3 4B out-projection", 2560, 2048),
    _gemma("Gemma 3 4B down", 2560, 10240),
    _gemma("Gemma 3 12B out-projection", 3840, 4096),
    _gemma("Gemma 3 12B down", 3840, 15360),
    _gemma("Gemma 3 27B out-projection", 5376, 4096),
    _gemma("Gemma 3 27B down", 5376, 21504),
)

# Rows that the two CTAs of a cluster hold, so that they exchange statistics through shared memory.
NARROW = (
    _narrow("MiniLM out-projection", 65536, 384, 384),
    _narrow("MiniLM feed-forward", 65536, 384, 1536),
    _narrow("Transformer base out-projection", 32768, 512, 512),
    _narrow("Transformer base feed-forward", 32768, 512, 2048),
    *(
        replace(w, family="narrow", m=32768)
        for w in (_gemma("Gemma 3 270M out-projection", 640, 1024), _gemma("Gemma 3 270M down", 640, 2048))
    ),
)
