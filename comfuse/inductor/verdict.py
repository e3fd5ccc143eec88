"""What became of a GEMM of a compiled graph, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The answer for one GEMM.

    Attributes:
        anchor: the GEMM's node in the graph.
        location: ``file:line`` of the user's program; None where the graph does not say.
        fused: whether a fused kernel takes its place.
        reason: why it was left to TorchInductor; of a fused one, what its region holds.
        shape: (M, N, K), as text where a size is symbolic.
        nodes: operators in its region.
        reductions: reductions among them.
        outputs: tensors that the region stores.
        spec: the region's spec, as text; empty where it was left before there was one.
        predicted_us: predicted time of the fused kernel, in microseconds.
        unfused_us: predicted time of what would run instead, in microseconds: TorchInductor's kernels, of a
            chain the faster of that and a fused kernel for each link.
        kernels: of a fused one, the programs of its kernels, each with its number of rows, None where that is
            symbolic.
        chain: the other GEMMs of its kernel where it is one of GEMMs back to back.
        apart: why it is not fused with the GEMM ahead of it or behind it, where there is one.
    """

    anchor: str
    location: str | None
    fused: bool
    reason: str
    shape: tuple[int | str, int | str, int | str]
    nodes: int = 1
    reductions: int = 0
    outputs: int = 1
    spec: str = ""
    predicted_us: float | None = None
    unfused_us: float | None = None
    kernels: tuple[tuple[str, int | None], ...] = ()
    chain: tuple[str, ...] = ()
    apart: str = ""
