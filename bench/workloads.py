"""What is measured: GEMMs with a normalisation behind them, at the shapes of published models.

Pure data: nothing here needs torch or a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# Ceilings measured on an H200: a device-to-device copy, bytes read plus bytes written, and a bf16
# 8192 x 8192 x 8192 torch.mm on random data.  The floor of a workload is the larger of its two times.
COPY_BYTES_PER_SECOND = 4.27e12
GEMM_FLOPS_PER_SECOND = 788e12

Norm = Literal["layernorm", "rmsnorm"]
ResidualPosition = Literal["before", "after"]


@dataclass(frozen=True)
class Workload:
    """y = norm(x W^T + bias [+ residual]) * weight [+ shift] [+ residual], M rows, N columns, K products.

    ``goal`` is the ratio to torch.mm of the same shape that ComFuse has to reach (None: no goal set).
    """

    family: str
    model: str
    m: int
    n: int
    k: int
    norm: Norm
    bias: bool = False
    residual: ResidualPosition | None = "before"
    weight_offset: float = 0.0  # added to the norm's weight: 1.0 in Gemma
    eps: float = 1e-5
    dtype: str = "bf16"
    goal: float | None = None

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def name(self) -> str:
        # One shape may stand for several programs in a family (with and without residual).
        tail = "" if self.residual else "-nores"
        return f"{self.family}-{self.shape}{tail}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> float:
        """Every tensor once: x, W, residual, the vectors, y."""
        tiles = 2 if self.residual else 1
        vectors = int(self.bias) + (2 if self.norm == "layernorm" else 1)
        return 2.0 * (self.m * self.k + self.n * self.k + tiles * self.m * self.n + vectors * self.n)

    @property
    def floor_us(self) -> float:
        return 1e6 * max(self.flops / GEMM_FLOPS_PER_SECOND, self.bytes_moved / COPY_BYTES_PER_SECOND)

    @property
    def floor_bound(self) -> str:
        by_flops = self.flops / GEMM_FLOPS_PER_SECOND >= self.bytes_moved / COPY_BYTES_PER_SECOND
        return "flops" if by_flops else "bytes"


def _postnorm(model: str, m: int, n: int, k: int, goal: float) -> Workload:
    return Workload("postnorm", model, m, n, k, norm="layernorm", bias=True, goal=goal)


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

_TOKENS = 8192


def _olmo2(model: str, n: int, k: int, residual: ResidualPosition | None = "after") -> Workload:
    return Workload("rmsnorm", model, _TOKENS, n, k, norm="rmsnorm", residual=residual, eps=1e-6)


def _gemma(model: str, n: int, k: int) -> Workload:
    return Workload(
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

FAMILIES: dict[str, tuple[Workload, ...]] = {"postnorm": POSTNORM, "rmsnorm": RMSNORM}


def by_name(name: str) -> Workload:
    """The workload of that name.

    Raises:
        KeyError: there is none.
    """
    return {w.name: w for family in FAMILIES.values() for w in family}[name]


def select(family: str, shapes: Iterable[str] = ()) -> tuple[Workload, ...]:
    """The workloads of a family, all of them or those of the shapes given as ``MxNxK``.

    Raises:
        ValueError: the family, or one of the shapes, does not exist.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    wanted = [s.replace(",", "x") for s in shapes]
    known = {w.shape for w in FAMILIES[family]}
    unknown = [s for s in wanted if s not in known]
    if unknown:
        raise ValueError(f"no shape {unknown[0]!r} in {family}; there are {', '.join(sorted(known))}")
    return tuple(w for w in FAMILIES[family] if not wanted or w.shape in wanted)
