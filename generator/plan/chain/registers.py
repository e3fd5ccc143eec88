"""Registers of a chain's consumer threads, as an estimate.

While both GEMMs run, a thread holds what wgmma reads and writes.  How much of that a compiler can place
without moving it was found with chains of many shapes.  Behind them it holds the second GEMM's result alone,
and has room for any program that there is room for before.
"""

from __future__ import annotations

from comfuse.generator.chain import ChainSpec
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan.chain.kernel import BLOCK, ChainShape, outer_tile, padded_k, tile_columns
from comfuse.generator.plan.registers import beside

# By warpgroups and buffers; above these, ptxas spilled or serialised the wgmmas of some chains.
_MOST_HELD = {(2, 1): 208, (2, 2): 192, (3, 1): 128, (3, 2): 128}

_SECOND_SWEEP = 16


def held(chain: ChainSpec, middle: PhaseProgram, program: PhaseProgram, shape: ChainShape) -> int:
    """What the GEMMs hold: the second's result, the first's, one packed as the second's A, rows of X.

    Beside them, the middle's values of a thread's two rows; and where the program behind has values of rows
    or reductions, ptxas needs room for them here too.
    """
    first, last = chain.links[0], chain.last
    results = tile_columns(last.n) // 2 + shape.buffers * first.products * BLOCK // 2
    packed = BLOCK // 4
    rows = padded_k(first.k) // 4 if shape.rows_in_registers else 0
    values = 2 * sum(len(phase.columns) for phase in middle.phases)
    # Of two rows too: what reductions have so far, a peak's shift and what it scales by.
    states = sum(REDUCTIONS[middle.spec.nodes[r].op].state_floats for r in middle.reductions)
    states += 2 * (len(middle.phases) - 1)
    return results + packed + rows + values + 2 * states + beside(program, outer_tile(last.n))


def most_held(middle: PhaseProgram, shape: ChainShape) -> int:
    limit = _MOST_HELD[shape.warpgroups, shape.buffers]
    # A middle that sweeps twice over a block holds more of it at once than is counted.
    sweeps_twice = len(middle.phases) > 1 and (shape.warpgroups, shape.buffers) == (3, 2)
    return limit - _SECOND_SWEEP if sweeps_twice else limit
