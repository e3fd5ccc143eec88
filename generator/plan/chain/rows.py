"""The tile operand of a chain that is read from the rows of its A where it is A itself.

A residual around all links is such a one.  Whether an operand is the same tensor as A is known at launch
only: the kernel compares what it is given (csrc/include/comfuse/sm90/chain_launch.hpp) and has both ways.
"""

from __future__ import annotations

from comfuse.generator.chain import ChainSpec
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan.chain import memory
from comfuse.generator.plan.chain.kernel import tile_columns
from comfuse.generator.plan.memory import PIECE_COLUMNS, slot_bytes, streamed


def holds_tiles(before: tuple[PhaseProgram, ...], program: PhaseProgram, slots: int) -> bool:
    """Whether a warpgroup's slots are taken as a whole: they hold all that a tile's phases read, which is one
    phase, behind the last GEMM.

    Args:
        before: the programs of all links but the last.
        slots: a warpgroup's.
    """
    if any(streamed(p.spec, phase) for p in before for phase in p.phases):
        return False
    read = [len(operands) for phase in program.phases if (operands := streamed(program.spec, phase))]
    return len(read) == 1 and slots % (read[0] * tile_columns(program.spec.n) // PIECE_COLUMNS) == 0


def operand_of_rows(
    links: ChainSpec, before: tuple[PhaseProgram, ...], program: PhaseProgram, slots: int
) -> int | None:
    """The number among the last link's operands of the one that may be A; None if there is none.

    It is the only tile operand that comes by TMA, of A's width and element type, and the slots hold whole
    tiles of it (:func:`holds_tiles`, whose arguments these are; ``links``: as the kernel holds them).
    """
    first, last = links.links[0], links.last
    operands = [o for phase in program.phases for o in streamed(last, phase)]
    if len(operands) != 1 or not holds_tiles(before, program, slots) or last.batched:
        return None
    same = last.n == first.k and last.operands[operands[0]].dtype is first.dtype
    # While a tile of rows is held the next one comes, if need be in the place of the slots.
    room = slots * slot_bytes(last) >= memory.row_bytes(links)
    return operands[0] if same and room else None
