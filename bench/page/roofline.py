"""Arithmetic intensity and achieved arithmetic of what was timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import providers, workloads
from bench.page import tables
from bench.page.entries import gemm_bytes
from bench.page.families import Family
from bench.page.files import ResultsFile
from bench.page.sections import Link, anchor, source
from bench.page.tables import Table, cells
from comfuse.generator.plan import Gpu


@dataclass(frozen=True)
class Dot:
    """One provider on one workload.

    Attributes:
        intensity: flops of its products a byte that has to be moved: every tensor of what it computes once.
        teraflops: those flops, over its time; 1e12 a second.
        ceiling: what the GPU allows at this intensity, in the same unit.
    """

    file: ResultsFile
    gpu: Gpu
    workload: str
    provider: str
    intensity: float
    teraflops: float
    ceiling: float
    lines: tuple[int, ...]

    @property
    def share(self) -> float:
        """Achieved over possible; above 1 where the GPU beats the ceiling that was measured on it."""
        return self.teraflops / self.ceiling


def ceiling(gpu: Gpu, intensity: float) -> float:
    """TFLOP/s that memory or arithmetic allows."""
    return min(gpu.flops, intensity * gpu.bandwidth) / 1e12


def dots(family: Family) -> list[Dot]:
    """Of the files that count, on GPUs that the planner knows.  Models have no count of flops."""
    found = []
    for m in family.shown:
        gpu = m.file.gpu
        if gpu is None or family.name == "models":
            continue
        for e in m.entries:
            w = workloads.by_name(e.workload)
            for name, us in e.us.items():
                provider = providers.PROVIDERS.get(name)
                alone = provider is not None and provider.only_gemm
                intensity = w.flops / (gemm_bytes(w) if alone else w.bytes_moved)
                limit = ceiling(gpu, intensity)
                lines = tuple(
                    n for n, row in m.file.rows if (row.workload, row.provider) == (e.workload, name)
                )
                found.append(
                    Dot(m.file, gpu, e.workload, name, intensity, w.flops / us.median / 1e6, limit, lines)
                )
    return found


def table(family: Family, found: Sequence[Dot], link: Link) -> Table:
    """Every dot of the plot, the farthest below its ceiling first."""
    rows = []
    for d in sorted(found, key=lambda d: d.share):
        line = [d.workload, d.provider, f"{d.intensity:.1f}", f"{d.teraflops:.1f}", f"{d.ceiling:.1f}"]
        key = f"roof--{anchor(d.file, d.workload)}--{d.provider}"
        rows.append((key, cells([*line, tables.percent(d.share), source(d.file, d.lines, link)])))
    columns = ("workload", "provider", "flop/byte", "TFLOP/s", "ceiling TFLOP/s", "of ceiling", "rows")
    return Table(f"{family.name}: points of the roofline", columns, tuple(rows), folded=True)
