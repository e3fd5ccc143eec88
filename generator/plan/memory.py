"""Shared memory and registers of a kernel.  The device side is csrc/include/comfuse/sm90/kernel.hpp."""

from __future__ import annotations

from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan.kernel_plan import TILE_K, TileShape
from comfuse.generator.spec import FusedSpec, Space

CHUNK_COLUMNS = 64  # tile operands arrive in chunks of this many columns, one a slot
MAX_STAGES = 8
MIN_STAGES = 3
MAX_SLOTS = 4
MIN_SLOTS = 2
REGISTER_LIMIT = 240  # what a consumer warpgroup gets


def operand_count(spec: FusedSpec, space: Space) -> int:
    return sum(operand.space is space for operand in spec.operands)


def stage_bytes(shape: TileShape) -> int:
    """One step of the GEMM: a block of A and one of B, 16-bit elements."""
    return (shape.tile_m + shape.tile_n) * TILE_K * 2


def slot_bytes(spec: FusedSpec, shape: TileShape) -> int:
    widest = max((o.dtype.nbytes for o in spec.operands if o.space is Space.TILE), default=0)
    return shape.tile_m * CHUNK_COLUMNS * widest


def vector_bytes(spec: FusedSpec, shape: TileShape) -> int:
    """Row and column vectors, as float32, two tiles' worth."""
    rows = operand_count(spec, Space.ROW) * shape.tile_n
    columns = operand_count(spec, Space.COLUMN) * shape.tile_m
    return 2 * (rows + columns) * 4


def barrier_bytes(stages: int, slots: int) -> int:
    """A full and an empty barrier each stage, slot and vector buffer."""
    return (2 * stages + 2 * slots + 4) * 8


def shared_bytes(spec: FusedSpec, shape: TileShape, stages: int, slots: int) -> int:
    return (
        stages * stage_bytes(shape)
        + slots * slot_bytes(spec, shape)
        + vector_bytes(spec, shape)
        + barrier_bytes(stages, slots)
    )


def needed_slots(program: PhaseProgram) -> int:
    """A phase reads one chunk of each of its tile operands at once; two slots at least, to overlap."""
    widest = max(len(phase.tiles) for phase in program.phases)
    return max(MIN_SLOTS, widest) if widest else 0


def stages_and_slots(spec: FusedSpec, program: PhaseProgram, shape: TileShape, limit: int) -> tuple[int, int]:
    """The most stages that fit, then the most slots; fewer than MIN_STAGES if the shape does not fit."""
    slots = needed_slots(program)
    stages = MAX_STAGES
    while stages > 0 and shared_bytes(spec, shape, stages, slots) > limit:
        stages -= 1
    enough = max(MAX_SLOTS, 2 * slots) if slots else 0
    while slots < enough and shared_bytes(spec, shape, stages, slots + 1) <= limit:
        slots += 1
    return stages, slots


def registers(spec: FusedSpec, program: PhaseProgram, shape: TileShape) -> int:
    """Estimate: accumulators, a phase's values a row, its named values of one 32-column fragment."""
    most = 0
    for phase in program.phases:
        state = sum(REDUCTIONS[spec.nodes[r].op].state_floats for r in phase.reductions)
        per_row = (len(phase.columns) + state) * shape.rows_per_thread
        most = max(most, per_row)
    return min(255, shape.accumulators + 24 + most)
