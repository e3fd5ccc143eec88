"""Registers of a kernel's consumer threads, as an estimate.

Held against ptxas in pingpong2, the schedule with the fewest registers, for programs of tails, groups,
column sums, two phases and more: it refuses what would spill, but for a few bytes here and there, and some
that would just fit.
"""

from __future__ import annotations

from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import Phase, PhaseProgram, axis, moves_rows
from comfuse.generator.plan.cost import loads_permuted
from comfuse.generator.plan.kernel_plan import TileShape
from comfuse.generator.spec import FusedSpec, Operand, Output, Space

_FIXED = 40  # addresses, loops, and the 16 values of the fragment at hand with what they are made from


def registers(program: PhaseProgram, shape: TileShape) -> int:
    """A thread's accumulators, results of groups, and what the fullest phase holds."""
    spec = program.spec
    accumulators = spec.products * shape.rows_of_warpgroup * shape.tile_n // 128
    # To trade accumulators, of both products at once.
    traded = 0 if loads_permuted(spec) else 16 * (spec.products - 1)
    return _FIXED + accumulators + traded + beside(program, shape)


def beside(program: PhaseProgram, shape: TileShape) -> int:
    """What a program holds beside the accumulators and the fragment at hand."""
    spec = program.spec
    rows_of_thread = shape.rows_of_warpgroup // 32
    groups = shape.tile_n // (spec.group or shape.tile_n)
    # A group's results stay for the later phases, those of the row that a thread owns.
    remembered = groups * sum(_state(spec, r) for r in program.reductions if axis(spec, r) == "group")
    return remembered + max(_phase(spec, p, rows_of_thread) for p in program.phases)


def _phase(spec: FusedSpec, phase: Phase, rows_of_thread: int) -> int:
    """Values a row or group, what reductions have so far, addresses of strided tiles, wide elements."""
    values = (len(phase.columns) + len(phase.groups)) * rows_of_thread
    # For each row, of a group too; for eight columns; for all.
    copies = {"row": rows_of_thread, "group": rows_of_thread, "col": 8, "full": 1}
    for r in phase.reductions:
        over = axis(spec, r)
        assert over is not None
        values += copies[over] * _state(spec, r)
    tiles: list[Operand | Output] = [spec.operands[o] for o in phase.tiles]
    tiles += [o for o in (spec.outputs[i] for i in phase.stores) if spaces(spec)[o.node] is Space.TILE]
    values += rows_of_thread * sum(not moves_rows(spec, tile) for tile in tiles)
    return values + max((2 * max(tile.dtype.nbytes - 2, 0) for tile in tiles), default=0)


def _state(spec: FusedSpec, reduction: int) -> int:
    return REDUCTIONS[spec.nodes[reduction].op].state_floats
