"""Graphs of elementwise work and reductions behind a GEMM, one of each kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.workloads.base import Workload
from bench.workloads.norms import NormWorkload


@dataclass(frozen=True)
class GraphWorkload(Workload):
    """``graph`` is a key of bench.programs.graphs.GRAPHS; the rest is what its floor is made of.

    ``tile_bytes``: an element of (M, N), all operands and outputs together; ``row_bytes``: a column;
    ``column_bytes``: a row.
    """

    graph: str = ""
    gemms: int = 1
    tile_bytes: float = 0.0
    row_bytes: float = 0.0
    column_bytes: float = 0.0
    over_rows: bool = False  # it has a column or full reduction

    @property
    def name(self) -> str:
        return f"{self.family}-{self.graph}-{self.shape}"

    @property
    def label(self) -> str:
        return f"{self.model} {self.m},{self.n},{self.k}"

    @property
    def whole(self) -> bool:
        return self.over_rows

    @property
    def products(self) -> int:
        return self.gemms

    @property
    def bytes_moved(self) -> float:
        factors = 2.0 * (self.m * self.k + self.products * self.n * self.k)
        vectors = self.row_bytes * self.n + self.column_bytes * self.m
        return factors + self.tile_bytes * self.m * self.n + vectors


@dataclass(frozen=True)
class NormOfGraphs(NormWorkload):
    """A norm that stands in this family too."""

    @property
    def name(self) -> str:
        return f"{self.family}-{self.norm}-{self.shape}"

    @property
    def label(self) -> str:
        return f"{self.model} {self.m},{self.n},{self.k}"


def _graph(graph: str, model: str, shape: tuple[int, int, int], goal: float, **facts: float) -> GraphWorkload:
    return GraphWorkload("graphs", model, *shape, goal=goal, against="inductor", graph=graph, **facts)  # type: ignore[arg-type]


_RMSNORM = NormOfGraphs(
    "graphs", "RMSNorm, residual", 8192, 4096, 4096, goal=1.06, against="inductor",
    norm="rmsnorm", residual="after", eps=1e-6,
)  # fmt: skip

GRAPHS: tuple[Workload, ...] = (
    _graph("softmax", "softmax", (8192, 2048, 512), 1.5, tile_bytes=2),
    _graph("relu_sum", "relu, full sum", (8192, 8192, 1024), 1.15, over_rows=True),
    _graph("logsumexp", "logsumexp", (8192, 32000, 4096), 1.1, column_bytes=4),
    _graph(
        "gelu_backward", "GELU backward, column sum", (16384, 4096, 1024), 1.4,
        tile_bytes=4, row_bytes=2, over_rows=True,
    ),
    _RMSNORM,
    replace(_RMSNORM, n=3584, weight_offset=1.0, goal=1.0),
    _graph("swiglu", "SwiGLU", (8192, 11008, 4096), 1.03, gemms=2, tile_bytes=2),
    _graph("gemma", "RMSNorm, residual, RMSNorm", (8192, 4608, 4096), 1.06, tile_bytes=6, row_bytes=4),
    _graph("quantise", "row amax, fp8", (8192, 4096, 4096), 1.0, tile_bytes=1, column_bytes=4),
)  # fmt: skip


def _epilogue(graph: str, model: str, shape: tuple[int, int, int]) -> GraphWorkload:
    return GraphWorkload("epilogues", model, *shape, graph=graph, tile_bytes=2, row_bytes=2)


# What cuBLASLt computes in one kernel too.
EPILOGUES: tuple[Workload, ...] = (
    _epilogue("bias_gelu", "BERT-base up", (16384, 3072, 768)),
    _epilogue("bias_gelu", "BERT-large up", (16384, 4096, 1024)),
    _epilogue("bias_relu", "Transformer base up", (16384, 2048, 512)),
)
