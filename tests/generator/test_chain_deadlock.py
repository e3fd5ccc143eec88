"""The kernel of a chain makes progress, with no deeper a ring than the planner demands."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfuse.generator.plan.chain import CHAIN_SHAPES, ChainPlan, chain_candidates
from comfuse.generator.plan.chain.kernel import Residence
from comfuse.generator.plan.chain.memory import least_ring
from comfuse.generator.plan.chain.rows import holds_tiles

from .chain_programs import CHAINS
from .chained import ChainMachine, ChainSimulation

STAYS: dict[Residence, tuple[bool, bool]] = {
    "resident": (True, True),
    "resident_first": (True, False),
    "streamed": (False, False),
}


def finishes(machine: ChainMachine) -> bool:
    return ChainSimulation(machine).run()


def machine(residence: Residence, ring: int, **keywords: Any) -> ChainMachine:
    first_stays, later_stay = STAYS[residence]
    return ChainMachine(ring=ring, first_stays=first_stays, later_stay=later_stay, **keywords)


@pytest.mark.parametrize("shape", CHAIN_SHAPES, ids=lambda s: s.name)
@pytest.mark.parametrize("residence", STAYS)
def test_progress_on_every_small_shape(shape: Any, residence: Residence) -> None:
    for tiles, blocks, pieces in itertools.product(
        (1, 2, 3, 4, 7), (1, 2, 3, 4, 5), ((0, 0), (1, 0), (2, 3))
    ):
        m = machine(
            residence,
            least_ring(residence),
            tiles=tiles,
            warpgroups=shape.warpgroups,
            buffers=shape.buffers,
            blocks=blocks,
            rows_in_registers=shape.rows_in_registers,
            middle_pieces=pieces[0],
            outer_pieces=pieces[1],
        )
        assert finishes(m), m


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_progress(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(CHAIN_SHAPES))
    residence = data.draw(st.sampled_from(list(STAYS)))
    further = data.draw(st.lists(st.integers(1, 4), max_size=2))
    m = machine(
        residence,
        least_ring(residence) + data.draw(st.integers(0, 3)),
        tiles=data.draw(st.integers(1, 12)),
        warpgroups=shape.warpgroups,
        buffers=shape.buffers,
        blocks=data.draw(st.integers(1, 9)),
        rows_in_registers=shape.rows_in_registers,
        row_stages=data.draw(st.integers(1, 2)),
        slots=data.draw(st.integers(1, 4)),
        middle_pieces=data.draw(st.integers(0, 4)),
        further=tuple(further),
        further_pieces=tuple(data.draw(st.integers(0, 4)) for _ in further),
        outer_pieces=data.draw(st.integers(0, 4)),
    )
    assert finishes(m)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_progress_where_tiles_are_held(data: st.DataObject) -> None:
    """In slots that hold whole tiles, or in the rows of A."""
    shape = data.draw(st.sampled_from(CHAIN_SHAPES))
    residence = data.draw(st.sampled_from(list(STAYS)))
    pieces = data.draw(st.integers(1, 4))
    m = machine(
        residence,
        least_ring(residence) + data.draw(st.integers(0, 3)),
        tiles=data.draw(st.integers(1, 12)),
        warpgroups=shape.warpgroups,
        buffers=shape.buffers,
        blocks=data.draw(st.integers(1, 5)),
        rows_in_registers=shape.rows_in_registers,
        row_stages=data.draw(st.integers(1, 2)),
        slots=pieces * data.draw(st.integers(1, 2)),
        further=tuple(data.draw(st.lists(st.integers(1, 4), max_size=2))),
        outer_pieces=pieces,
        holds_tile=True,
        from_rows=data.draw(st.booleans()),
    )
    assert finishes(m)


def test_the_simulation_finds_the_deadlock_of_slots_that_hold_part_of_a_tile() -> None:
    m = machine(
        "resident",
        0,
        tiles=4,
        warpgroups=2,
        buffers=2,
        blocks=2,
        rows_in_registers=False,
        slots=4,
        outer_pieces=4,
        holds_tile=True,
    )
    assert finishes(m)
    assert not finishes(dataclasses.replace(m, slots=3))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_progress_of_batches(data: st.DataObject) -> None:
    """Warpgroups are idle in rounds between others, and pass the weights of these."""
    shape = data.draw(st.sampled_from(CHAIN_SHAPES))
    tiles_of_batch = data.draw(st.integers(1, 8))
    m = machine(
        "streamed",
        least_ring("streamed") + data.draw(st.integers(0, 3)),
        tiles=tiles_of_batch * data.draw(st.integers(1, 4)),
        tiles_of_batch=tiles_of_batch,
        warpgroups=shape.warpgroups,
        buffers=shape.buffers,
        blocks=data.draw(st.integers(1, 6)),
        rows_in_registers=shape.rows_in_registers,
        row_stages=data.draw(st.integers(1, 2)),
        slots=data.draw(st.integers(1, 4)),
        middle_pieces=data.draw(st.integers(0, 4)),
    )
    assert finishes(m)


@pytest.mark.parametrize("buffers", [1, 2])
def test_the_simulation_finds_the_deadlock_of_too_short_a_ring(buffers: int) -> None:
    """A ring of one block less than the planner demands, where there are blocks enough to fill it."""
    m = machine(
        "streamed",
        least_ring("streamed"),
        tiles=2,
        warpgroups=2,
        buffers=buffers,
        blocks=4,
        rows_in_registers=True,
    )
    assert finishes(m)
    assert not finishes(dataclasses.replace(m, ring=m.ring - 1))


@pytest.mark.parametrize("name", CHAINS)
def test_progress_of_every_plan(name: str) -> None:
    for p in chain_candidates(CHAINS[name]):
        if not isinstance(p, ChainPlan):
            continue
        first = p.spec.links[0]
        m = machine(
            p.weights.residence,
            p.weights.ring,
            tiles=7,
            warpgroups=p.shape.warpgroups,
            buffers=p.shape.buffers,
            blocks=-(-first.n // 64),
            rows_in_registers=p.shape.rows_in_registers,
            slots=p.tile_slots,
            middle_pieces=2 * len(p.middle.phases[0].tiles),
            further=tuple(-(-link.k // 64) for link in p.spec.links[2:]),
            further_pieces=tuple(len(f.phases[0].tiles) * -(-f.spec.n // 32) for f in p.further),
            outer_pieces=sum(len(phase.tiles) for phase in p.program.phases) * p.tile_n // 32,
            holds_tile=holds_tiles((p.middle, *p.further), p.program, p.tile_slots),
        )
        assert finishes(m), m
