"""Shared memory of a kernel.  The device side is csrc/include/comfuse/sm90/kernel.hpp."""

from __future__ import annotations

from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.phases import Phase, PhaseProgram, axis, moves_rows
from comfuse.generator.plan.kernel_plan import SCHEDULES, TILE_K, TileShape
from comfuse.generator.spec import FusedSpec, Space

# Tile operands arrive in pieces, one a slot.
PIECE_ROWS = 64
PIECE_COLUMNS = 32
MAX_STAGES = 8
MIN_STAGES = 3
GOOD_STAGES = 4  # fewer only to make room for the slots that a phase cannot do without
GOOD_CHUNKS = 2  # of 32 columns that the slots hold: one is read while the next arrives
FULL_CHUNKS = 4  # more only as far as they hold a part of the same tile
# Stages that suffice where what they leave holds more of a tile, by its columns.  Measured; with 224 and 288
# columns three are 6 to 13 % slower (bench/NOTES.md, section 7).
ENOUGH_STAGES = {256: 3}


def operand_count(spec: FusedSpec, space: Space) -> int:
    return sum(operand.space is space for operand in spec.operands)


def stage_bytes(spec: FusedSpec, shape: TileShape) -> int:
    """One step of a GEMM: a block of A and one of each B that it is multiplied by; 16-bit elements."""
    return (shape.tile_m + spec.products_of_a * shape.tile_n) * TILE_K * 2


def slot_bytes(spec: FusedSpec) -> int:
    """A slot holds a piece of the widest tile operand that comes by TMA; the others need none."""
    streamed = [o for o in spec.operands if o.space is Space.TILE and moves_rows(spec, o)]
    return PIECE_ROWS * PIECE_COLUMNS * max((o.dtype.nbytes for o in streamed), default=0)


def streamed(spec: FusedSpec, phase: Phase) -> tuple[int, ...]:
    """The tile operands that a phase reads from slots."""
    return tuple(o for o in phase.tiles if moves_rows(spec, spec.operands[o]))


def vector_bytes(spec: FusedSpec, shape: TileShape) -> int:
    """A tile's part of every vector operand, for each team."""
    length = {Space.ROW: shape.tile_n, Space.COLUMN: shape.tile_m}
    one = sum(length.get(o.space, 0) * o.dtype.nbytes for o in spec.operands)
    return one * SCHEDULES[shape.schedule].teams


def collector_bytes(program: PhaseProgram, shape: TileShape) -> int:
    """Partial results of column and full reductions, from a team's warps to the collector.

    Column reductions that the tiles of a block of columns exchange have no collector (:func:`column_bytes`).

    That is csrc/include/comfuse/sm90/collector_memory.hpp: for each team and warp a value a column, or one;
    then a bit for each tile of a row block and one more, in words of 64, and barriers.
    """
    spec, schedule = program.spec, SCHEDULES[shape.schedule]
    axes = ("full",) if program.columns_wait else ("col", "full")
    late = [r for r in program.reductions if axis(spec, r) in axes]
    if not late:
        return 0
    warps = 4 * schedule.warpgroups
    column = sum(_column_states(spec, shape, r) for r in late if axis(spec, r) == "col")
    full = sum(8 for r in late if axis(spec, r) == "full")
    finished = -(-(shape.tiles_n(spec.n) + 1) // 64) * 8
    return warps * (column + full) + finished + (2 * schedule.teams + 1) * 8


def column_bytes(program: PhaseProgram, shape: TileShape) -> int:
    """Partial results of exchanged column reductions (csrc/include/comfuse/sm90/column_memory.hpp)."""
    exchanged = [r for phase in program.phases if phase.columns_wait for r in phase.reductions]
    warps = 4 * SCHEDULES[shape.schedule].warpgroups
    spec = program.spec
    return warps * sum(_column_states(spec, shape, r) for r in exchanged if axis(spec, r) == "col")


def in_cluster(program: PhaseProgram, shape: TileShape) -> bool:
    """Whether the tiles that wait for each other's row reductions are the CTAs of one cluster."""
    return program.waits and shape.cluster_n == shape.tiles_n(program.spec.n) > 1


def group_bytes(program: PhaseProgram, shape: TileShape) -> int:
    """Words that a cluster's CTAs exchange (csrc/include/comfuse/sm90/cluster_group.hpp).

    A word a row and tile of each reduction that is fed back, twice for each team, and two barriers a warp.
    """
    if not in_cluster(program, shape):
        return 0
    waited = [r for phase in program.phases if phase.waits for r in phase.reductions]
    rows = sum(axis(program.spec, r) == "row" for r in waited)
    schedule = SCHEDULES[shape.schedule]
    words = 2 * schedule.teams * rows * shape.cluster_n * shape.tile_m
    return 8 * (words + 2 * 4 * schedule.warpgroups)


def _column_states(spec: FusedSpec, shape: TileShape, reduction: int) -> int:
    """Bytes of one warp's."""
    return 4 * REDUCTIONS[spec.nodes[reduction].op].state_floats * shape.tile_n


def barrier_bytes(shape: TileShape, stages: int, slots: int) -> int:
    """A full and an empty barrier for each stage, each slot, each team's vectors."""
    schedule = SCHEDULES[shape.schedule]
    return 2 * (stages + schedule.team_size * slots + schedule.teams) * 8


def shared_bytes(program: PhaseProgram, shape: TileShape, stages: int, slots: int) -> int:
    """Shared memory of a kernel.

    Each member of a team has a ring of ``slots``, for its own rows; both teams use it in turn.
    """
    spec = program.spec
    return (
        stages * stage_bytes(spec, shape)
        + SCHEDULES[shape.schedule].team_size * slots * slot_bytes(spec)
        + vector_bytes(spec, shape)
        + column_bytes(program, shape)
        + collector_bytes(program, shape)
        + group_bytes(program, shape)
        + barrier_bytes(shape, stages, slots)
    )


def needed_slots(program: PhaseProgram, shape: TileShape) -> int:
    """Slots that a warpgroup holds at once: for 32 columns of a phase, all rows of all its operands."""
    most = max(len(streamed(program.spec, phase)) for phase in program.phases)
    return shape.rows_of_warpgroup // PIECE_ROWS * most


def most_slots(program: PhaseProgram, shape: TileShape) -> int:
    """Slots that can be of use: those of a whole tile, or of ``FULL_CHUNKS`` chunks if that is more."""
    return max(FULL_CHUNKS, shape.tile_n // PIECE_COLUMNS) * needed_slots(program, shape)


def stages_and_slots(program: PhaseProgram, shape: TileShape, limit: int) -> tuple[int, int]:
    """As many stages as fit beside ``GOOD_CHUNKS`` chunks, then as many slots as fit and are of use.

    Where that leaves too few stages, fewer slots; where it leaves too few slots for a whole tile, as many
    stages as are enough.  They are fewer than ``MIN_STAGES`` if the shape does not fit at all.
    """
    needed = needed_slots(program, shape)
    slots = GOOD_CHUNKS * needed
    while slots > needed and _stages(program, shape, slots, limit) < GOOD_STAGES:
        slots -= 1
    stages = _stages(program, shape, slots, limit)
    filled = _filled(program, shape, stages, slots, limit)
    enough = ENOUGH_STAGES.get(shape.tile_n, stages)
    if enough < stages and filled < most_slots(program, shape):
        return enough, _filled(program, shape, enough, slots, limit)
    return stages, filled


def pipelines(program: PhaseProgram, shape: TileShape, limit: int) -> tuple[tuple[int, int], ...]:
    """Every division of shared memory into stages and slots that could be the best, most stages first.

    Left out are those that another one beats in one number and equals in the other, or beats in both.
    """
    needed = needed_slots(program, shape)
    found: list[tuple[int, int]] = []
    for stages in range(MAX_STAGES, MIN_STAGES - 1, -1):
        if shared_bytes(program, shape, stages, needed) > limit:
            continue
        slots = _filled(program, shape, stages, needed, limit)
        if not found or slots > found[-1][1]:
            found.append((stages, slots))
    return tuple(found)


def _filled(program: PhaseProgram, shape: TileShape, stages: int, slots: int, limit: int) -> int:
    """As many slots as fit beside the stages, at least ``slots``."""
    used = shared_bytes(program, shape, stages, slots)
    one = shared_bytes(program, shape, stages, slots + 1) - used
    return max(slots, min(most_slots(program, shape), slots + (limit - used) // one))


def _stages(program: PhaseProgram, shape: TileShape, slots: int, limit: int) -> int:
    used = shared_bytes(program, shape, 0, slots)
    one = shared_bytes(program, shape, 1, slots) - used
    return max(0, min(MAX_STAGES, (limit - used) // one))
