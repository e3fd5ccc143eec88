"""The persistent schedule with its row-group exchange and its collector makes progress, whatever the shape.

The argument: a tile waits for tiles of its own row block only.  If a row block's tiles number at most the
grid's CTAs, each CTA has at most one of them, and whatever it must finish before lies in earlier blocks.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.plan import (
    SCHEDULES,
    SHAPES,
    SHAPES_ALONG_M,
    KernelPlan,
    Refusal,
    candidates,
    candidates_to_measure,
)
from comfuse.generator.spec import DType

from .persistent import Machine, Simulation


def finishes(machine: Machine) -> bool:
    return Simulation(machine).run()


#: Along M, along N.
CLUSTERS = ((1, 1), (1, 2), (2, 1))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("cluster_m, cluster_n", CLUSTERS)
def test_progress_on_every_small_shape(schedule: str, cluster_m: int, cluster_n: int) -> None:
    for clusters, tiles_n, row_blocks in itertools.product((1, 2, 3, 5), (1, 2, 3, 4, 7), (1, 2, 3, 6)):
        if -(-tiles_n // cluster_n) > clusters:
            continue
        for phases, loads in ((1, (2,)), (2, ()), (2, (2, 0)), (3, (0, 3, 1))):
            machine = Machine(
                row_blocks, tiles_n, cluster_n, clusters, schedule, phases, loads=loads, cluster_m=cluster_m
            )
            assert finishes(machine), machine


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_progress(data: st.DataObject) -> None:
    cluster_m, cluster_n = data.draw(st.sampled_from(CLUSTERS))
    clusters = data.draw(st.integers(1, 12))
    phases = data.draw(st.integers(1, 4))
    machine = Machine(
        row_blocks=data.draw(st.integers(1, 12)),
        tiles_n=data.draw(st.integers(1, clusters * cluster_n)),
        cluster_n=cluster_n,
        clusters=clusters,
        schedule=data.draw(st.sampled_from(list(SCHEDULES))),
        phases=phases,
        stages=data.draw(st.integers(1, 4)),
        k_blocks=data.draw(st.integers(1, 5)),
        slots=data.draw(st.integers(1, 3)),
        loads=tuple(data.draw(st.lists(st.integers(0, 3), min_size=phases, max_size=phases))),
        waits=tuple(data.draw(st.lists(st.booleans(), min_size=phases, max_size=phases))),
        collects=data.draw(st.booleans()),
        cluster_m=cluster_m,
    )
    assert finishes(machine)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_without_waits_any_width_makes_progress(data: st.DataObject) -> None:
    """Tails and groups: a row block may have many more tiles than the grid has CTAs."""
    cluster_m, cluster_n = data.draw(st.sampled_from(CLUSTERS))
    phases = data.draw(st.integers(1, 3))
    machine = Machine(
        row_blocks=data.draw(st.integers(1, 4)),
        tiles_n=data.draw(st.integers(1, 40)),
        cluster_n=cluster_n,
        clusters=data.draw(st.integers(1, 5)),
        schedule=data.draw(st.sampled_from(list(SCHEDULES))),
        phases=phases,
        k_blocks=data.draw(st.integers(1, 3)),
        loads=tuple(data.draw(st.lists(st.integers(0, 2), min_size=phases, max_size=phases))),
        waits=(False,) * phases,
        collects=data.draw(st.booleans()),
        cluster_m=cluster_m,
    )
    assert finishes(machine)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "cluster_m, cluster_n, tiles_n",
    [*((1, c, t) for c in (1, 2) for t in (42, 131, 132)), *((2, 1, t) for t in (21, 65, 66))],
)
def test_progress_on_the_real_grid(schedule: str, cluster_m: int, cluster_n: int, tiles_n: int) -> None:
    clusters = 132 // (cluster_m * cluster_n)
    machine = Machine(
        5, tiles_n, cluster_n, clusters, schedule, phases=3, k_blocks=1, loads=(1, 0, 1), cluster_m=cluster_m
    )
    assert finishes(machine)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "cluster_m, cluster_n, clusters, tiles_n",
    [(1, 1, 1, 2), (1, 1, 3, 4), (1, 2, 2, 5), (1, 2, 3, 7), (1, 1, 132, 133), (2, 1, 3, 4), (2, 1, 66, 67)],
)
def test_the_simulation_finds_the_deadlock_of_too_wide_a_row(
    schedule: str, cluster_m: int, cluster_n: int, clusters: int, tiles_n: int
) -> None:
    """More tiles in a row block than CTAs: some tile waits for one that its own CTA has yet to start.

    In pingpong the other warpgroup may save the last row of tiles, but not with tile operands, which are
    loaded in the order of the items, nor with twice as many tiles.
    """
    loads = (1, 2)
    deep = 2 * cluster_m  # row blocks
    assert not finishes(
        Machine(deep, tiles_n, cluster_n, clusters, schedule, 2, k_blocks=1, loads=loads, cluster_m=cluster_m)
    )
    wide = 2 * cluster_n * clusters + 1
    assert not finishes(Machine(1, wide, cluster_n, clusters, schedule, 2, k_blocks=1, cluster_m=cluster_m))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_columns_that_wait_make_progress_where_all_tiles_run_at_once(data: st.DataObject) -> None:
    """Beside row groups and a collector, in any phases."""
    cluster_m, cluster_n = data.draw(st.sampled_from(CLUSTERS))
    tiles_n, row_blocks = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    phases = data.draw(st.integers(1, 4))
    booleans = st.lists(st.booleans(), min_size=phases, max_size=phases)
    machine = Machine(
        row_blocks=row_blocks,
        tiles_n=tiles_n,
        cluster_n=cluster_n,
        clusters=-(-tiles_n // cluster_n) * -(-row_blocks // cluster_m),
        schedule="cooperative",
        phases=phases,
        stages=data.draw(st.integers(1, 4)),
        k_blocks=data.draw(st.integers(1, 3)),
        slots=data.draw(st.integers(1, 3)),
        loads=tuple(data.draw(st.lists(st.integers(0, 3), min_size=phases, max_size=phases))),
        waits=tuple(data.draw(booleans)),
        column_waits=tuple(data.draw(booleans)),
        collects=data.draw(st.booleans()),
        cluster_m=cluster_m,
    )
    assert finishes(machine)


@pytest.mark.parametrize("cluster_n", [1, 2])
@pytest.mark.parametrize("tiles_n, row_blocks", [(1, 3), (2, 2), (3, 4)])
def test_the_simulation_finds_the_deadlock_of_too_many_rows(
    cluster_n: int, tiles_n: int, row_blocks: int
) -> None:
    """One row block fewer than there are: its tiles would come second, and all wait for them."""
    clusters = -(-tiles_n // cluster_n) * (row_blocks - 1)
    for loads in ((), (1, 1)):
        assert not finishes(
            Machine(
                row_blocks, tiles_n, cluster_n, clusters, "cooperative", 2,
                loads=loads, waits=(False, False), column_waits=(True, False),
            )
        )  # fmt: skip


def test_as_many_rows_as_the_planner_lets_pass_make_progress() -> None:
    b = SpecBuilder(300, 64, DType.BF16)
    x = b.gemm()
    b.output("y", b.op("sub", x, b.op("col_max", x)), DType.BF16)
    considered = (*candidates(b.spec(), "h200:12", 1), *candidates_to_measure(b.spec(), "h200:12", 129))
    found = [c for c in considered if isinstance(c, KernelPlan)]
    assert {c.max_m for c in found if c.cluster_m == 1} == {256, 384, 512, 768}
    assert {c.max_m for c in found if c.cluster_m == 2} == {512, 768}
    for c in found:
        assert c.max_m is not None
        machine = Machine(
            c.max_m // 128, c.shape.tiles_n(300), c.cluster_n, 12 // c.shape.cluster_size, c.schedule, 2,
            waits=(False, False), column_waits=(True, False), cluster_m=c.cluster_m,
        )  # fmt: skip
        assert machine.items <= machine.clusters
        assert finishes(machine)


def test_one_phase_never_waits() -> None:
    assert finishes(Machine(3, 9, 1, 2, "pingpong", phases=1))


def test_the_planner_lets_any_width_pass_that_nobody_waits_for() -> None:
    b = SpecBuilder(1 << 18, 64, DType.BF16)
    x = b.gemm()
    b.output("lse", b.field(b.op("row_softmax", x), "lse"), DType.FP32)
    b.output("sums", b.op("col_sum", x), DType.FP32)
    found = candidates(b.spec())
    assert any(isinstance(c, KernelPlan) for c in found)
    assert all(c.constraint != "row_group_is_resident" for c in found if isinstance(c, Refusal))


def test_the_planner_refuses_what_would_deadlock() -> None:
    """The planner's limit is the simulation's: as many clusters of tiles as the grid has clusters."""
    for shape in (*SHAPES, *SHAPES_ALONG_M):
        for tiles in (66, 67, 132, 133):
            spec = catalog.rmsnorm(tiles * shape.tile_n, 64, DType.BF16)
            considered = (*candidates(spec), *candidates_to_measure(spec))
            found = next(c for c in considered if c.shape == shape)
            assert isinstance(found, Refusal) == (shape.clusters_n(spec.n) > 132 // shape.cluster_size)
