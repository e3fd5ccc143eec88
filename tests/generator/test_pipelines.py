"""Divisions of shared memory into stages and slots."""

from __future__ import annotations

import itertools

import pytest

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.emit import emit
from comfuse.generator.errors import PlanError
from comfuse.generator.plan import KernelPlan, candidates, force, memory, pipelines, plan
from comfuse.generator.plan.gpus import find
from comfuse.generator.spec import DType, FusedSpec, Space

BF16, FP32 = DType.BF16, DType.FP32


def tiles(count: int) -> FusedSpec:
    """A sum of float32 tile operands."""
    b = SpecBuilder(1024, 1024, BF16)
    x = b.gemm()
    for i in range(count):
        x = b.op("add", x, b.load(f"t{i}", Space.TILE, FP32))
    b.output("y", x, BF16)
    return b.spec()


SPECS = {
    "linear": catalog.linear(1024, 1024, BF16),
    "layernorm": catalog.layernorm(768, 768, BF16, bias=BF16, residual=BF16),
    "gated": catalog.gated(1024, 512, BF16),
    "two tiles": tiles(2),
    "three tiles": tiles(3),
}


@pytest.mark.parametrize("name", SPECS)
def test_they_are_the_best_of_all_that_fit(name: str) -> None:
    limit = find("h200").shared_bytes
    for c in candidates(SPECS[name]):
        if not isinstance(c, KernelPlan):
            continue
        needed = memory.needed_slots(c.program, c.shape)
        slots_at_all = range(needed, memory.most_slots(c.program, c.shape) + 1)
        fit = [
            (stages, slots)
            for stages, slots in itertools.product(
                range(memory.MIN_STAGES, memory.MAX_STAGES + 1), slots_at_all
            )
            if memory.shared_bytes(c.program, c.shape, stages, slots) <= limit
        ]
        best = [a for a in fit if not any(b != a and b[0] >= a[0] and b[1] >= a[1] for b in fit)]
        found = [(p.stages, p.tile_slots) for p in pipelines(c)]
        assert found == sorted(best, reverse=True)
        assert (c.stages, c.tile_slots) in found
        for p in pipelines(c):
            assert p.shared_bytes == memory.shared_bytes(p.program, p.shape, p.stages, p.tile_slots)
            assert p.shape == c.shape


def test_a_kernel_has_the_stages_that_were_asked_for() -> None:
    chosen = plan(tiles(3))
    several = pipelines(chosen)
    assert len(several) > 1
    for p in several:
        forced = force(tiles(3), chosen.shape, stages=p.stages)
        assert (forced.stages, forced.tile_slots) == (p.stages, p.tile_slots)
        text = emit(forced).text
        assert f"cf::Stages<{p.stages}>" in text
        assert f"cf::TileSlots<{p.tile_slots}>" in text
    assert len({emit(p).name for p in several}) == len({p.label for p in several}) == len(several)


def test_stages_that_do_not_fit_are_refused() -> None:
    chosen = plan(SPECS["layernorm"])
    with pytest.raises(PlanError, match=r"17 stages; allowed: \d"):
        force(SPECS["layernorm"], chosen.shape, stages=17)
