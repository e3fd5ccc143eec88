"""Registers of a chain's consumer threads, as an estimate.

While the first two GEMMs run, a thread holds what wgmma reads and writes.  How much of that a compiler can
place without moving it was found with chains of many shapes.  While a further one runs, it holds that one's
result and, packed, the result of the one before.  Behind them it holds the last GEMM's result alone, and has
room for any program that there is room for before.
"""

from __future__ import annotations

from comfuse.generator.chain import ChainSpec
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.phases import PhaseProgram, moves_rows
from comfuse.generator.plan.chain.kernel import BLOCK, ChainShape, outer_tile, padded_k, tile_columns
from comfuse.generator.plan.registers import beside

# By warpgroups and buffers; above these, ptxas spilled or serialised the wgmmas of some chains.
_MOST_HELD = {(2, 1): 208, (2, 2): 192, (3, 1): 128, (3, 2): 128}

_SECOND_SWEEP = 16
_FURTHER_GEMM = 32


def held(chain: ChainSpec, middle: PhaseProgram, program: PhaseProgram, shape: ChainShape) -> int:
    """What the GEMMs hold: the first two, or a further one if that is more.

    Where the program behind has values of rows or reductions, ptxas needs room for them here too.
    """
    stages = [tile_columns(link.k) // 4 + tile_columns(link.n) // 2 for link in chain.links[2:]]
    stages.append(_held_by_two(chain, middle, shape))
    return max(stages) + beside(program, outer_tile(chain.last.n))


def _held_by_two(chain: ChainSpec, middle: PhaseProgram, shape: ChainShape) -> int:
    """The second's result, the first's, one packed as the second's A, rows of X.

    Beside them, the middle's values of a thread's two rows, and where those of strided tiles lie.
    """
    first, second = chain.links[:2]
    results = tile_columns(second.n) // 2 + shape.buffers * first.products * BLOCK // 2
    packed = BLOCK // 4
    rows = padded_k(first.k) // 4 if shape.rows_in_registers else 0
    values = 2 * sum(len(phase.columns) for phase in middle.phases)
    read = {o for phase in middle.phases for o in phase.tiles}
    addresses = 4 * sum(not moves_rows(middle.spec, middle.spec.operands[o]) for o in read)
    # Of two rows too: what reductions have so far, a peak's shift and what it scales by.
    states = sum(REDUCTIONS[middle.spec.nodes[r].op].state_floats for r in middle.reductions)
    states += 2 * (len(middle.phases) - 1)
    return results + packed + rows + values + addresses + 2 * states


def most_held(chain: ChainSpec, middle: PhaseProgram, shape: ChainShape) -> int:
    limit = _MOST_HELD[shape.warpgroups, shape.buffers]
    if (shape.warpgroups, shape.buffers) != (3, 2):
        return limit
    # A middle that sweeps twice over a block holds more of it at once than is counted; and with a GEMM behind
    # the second one ptxas serialised the wgmmas of the smallest tiles.
    more = (_SECOND_SWEEP if len(middle.phases) > 1 else 0) + (_FURTHER_GEMM if len(chain.links) > 2 else 0)
    return limit - more
