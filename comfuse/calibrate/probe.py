"""What is launched to measure the constants: few kernels, each at one or more numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from comfuse.errors import PlanError
from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.catalog.parts import Layouts
from comfuse.generator.plan import SCHEDULES, SHAPES, Gpu, KernelPlan, TileShape, cost, force
from comfuse.generator.spec import DType, FusedSpec, Major

_BF16, _FP32 = DType.BF16, DType.FP32
_SMALL = TileShape("pingpong", 128, 128, 2)
_LARGE = TileShape("cooperative", 128, 256, 2)
# A shape of each schedule that the planner prefers.
_OF_SCHEDULE = (_SMALL, TileShape("pingpong2", 128, 128, 2), _LARGE)


@dataclass(frozen=True)
class Probe:
    """One kernel at one number of rows.

    ``plan`` serves ``m`` rows, and others: probes of one program and tile shape share it.
    """

    plan: KernelPlan
    m: int

    @property
    def name(self) -> str:
        return f"{self.plan.shape.name}, M = {self.m}, N = {self.plan.spec.n}, K = {self.plan.spec.k}"

    def predicted_us(self, gpu: Gpu) -> float:
        """By the cost model alone, without the floor."""
        return cost.predict_us(self.plan.spec, self.plan.program, self.plan.shape, gpu, self.m)


def probes(gpu: Gpu) -> tuple[Probe, ...]:
    """All launches for a GPU; those that its planner refuses are left out."""
    found = []
    for spec, shape, rows in _wanted():
        try:
            # A program that many rows cannot run is planned for the most that are launched.
            plan = _any_rows(spec, shape, gpu) or force(spec, shape, gpu, max(rows))
        except PlanError:
            continue
        found += [Probe(plan, m) for m in rows if plan.max_m is None or m <= plan.max_m]
    return tuple(found)


def _any_rows(spec: FusedSpec, shape: TileShape, gpu: Gpu) -> KernelPlan | None:
    try:
        return force(spec, shape, gpu)
    except PlanError:
        return None


Wanted = tuple[FusedSpec, TileShape, tuple[int, ...]]


def _wanted() -> Iterator[Wanted]:
    """Program, tile shape, numbers of rows."""
    for shape in SHAPES:  # the multiplying loops, by two K's; a launch, by few rows
        if shape.cluster_n == 2:
            n = 2048 // (2 * shape.tile_n) * 2 * shape.tile_n  # whole clusters
            yield catalog.linear(n, 512, _BF16), shape, (128, 16384)
            yield catalog.linear(n, 4096, _BF16), shape, (8192,)
    yield catalog.linear(2048, 2048, _BF16), TileShape("pingpong", 128, 128, 1), (8192,)
    yield catalog.linear(8192, 4096, _BF16), _SMALL, (2048, 8192, 32768)  # how long launches slow down
    yield catalog.linear(2056, 2048, _BF16), _LARGE, (8192,)  # clipped
    transposed = Layouts(b=Major.MN)  # accumulators are traded
    yield catalog.linear(2048, 512, _BF16, layouts=transposed), _SMALL, (16384,)
    yield catalog.linear(256, 256, _BF16, residual=_BF16), _SMALL, (262144,)  # memory
    for shape in _OF_SCHEDULE:
        # Epilogues of two lengths, then waits within a cluster, for short and for long rows.
        yield catalog.linear(2048, 512, _BF16, bias=_BF16, activation="gelu"), shape, (16384,)
        yield catalog.rmsnorm(2 * shape.tile_n, 256, _BF16), shape, (65536,)
        yield catalog.rmsnorm(4 * shape.tile_n, 512, _BF16), shape, (65536,)
        yield catalog.rmsnorm(4096, 512, _BF16), shape, (16384,)
    assert {shape.schedule for shape in _OF_SCHEDULE} == set(SCHEDULES)
    yield catalog.rmsnorm(5120, 512, _BF16), _LARGE, (8192,)  # row blocks straddle waves
    yield catalog.rmsnorm(4096, 1024, _BF16), _SMALL, (16384,)  # B is read again and again
    yield _total(), _SMALL, (65536,)
    for tile_n in (64, 128):  # the warp that collects column sums takes longer than all others
        yield _summed(), TileShape("pingpong", 128, tile_n, 1), (262144,)
    yield _centred(), _LARGE, (512, 2048, 8192)


def _total() -> FusedSpec:
    """A full sum, whose partials the last tile merges."""
    b = SpecBuilder(512, 256, _BF16)
    b.output("total", b.op("full_sum", b.gemm()), _FP32)
    return b.spec()


def _summed() -> FusedSpec:
    """Tiles and the sums of their columns."""
    b = SpecBuilder(512, 64, _BF16)
    x = b.gemm()
    b.output("y", x, _BF16)
    b.output("sum", b.op("col_sum", x), _FP32)
    return b.spec()


def _centred() -> FusedSpec:
    """Tiles that wait for the sums of their columns."""
    b = SpecBuilder(512, 512, _BF16)
    x = b.gemm()
    b.output("y", b.op("sub", x, b.op("col_sum", x)), _BF16)
    return b.spec()
