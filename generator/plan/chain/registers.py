"""Registers of a chain's consumer threads, as an estimate.

While both GEMMs run, a thread holds what wgmma reads and writes; what a compiler can make of that without
moving it was measured with kernels of this structure.  Behind them it holds the second GEMM's result alone,
and the program runs as it does in any other kernel.
"""

from __future__ import annotations

from comfuse.generator.chain import ChainSpec
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan.chain.kernel import BLOCK, ChainShape, outer_tile, padded_k, tile_columns
from comfuse.generator.plan.registers import registers

# Of a thread, for each number of warpgroups: registers that the GEMMs hold, and all that it may have.  With
# 192 and 144 of the former ptxas spilled or serialised the wgmmas, though not of every chain.
_MOST_HELD = {2: 176, 3: 128}
_MOST = {2: 232, 3: 152}


def held(chain: ChainSpec, middle: PhaseProgram, shape: ChainShape) -> int:
    """What the GEMMs hold: the second's result, the first's, one packed as the second's A, rows of X.

    Beside them stay the middle's values of the two rows that a thread has a part of.
    """
    first, last = chain.links[0], chain.last
    results = tile_columns(last.n) // 2 + shape.buffers * first.products * BLOCK // 2
    packed = BLOCK // 4
    rows = padded_k(first.k) // 4 if shape.rows_in_registers else 0
    return results + packed + rows + 2 * sum(len(phase.columns) for phase in middle.phases)


def most_held(shape: ChainShape) -> int:
    return _MOST_HELD[shape.warpgroups]


def behind(program: PhaseProgram) -> int:
    """What the second link's program needs, when the GEMMs are done."""
    return registers(program, outer_tile(program.spec.n))


def most(shape: ChainShape) -> int:
    return _MOST[shape.warpgroups]
