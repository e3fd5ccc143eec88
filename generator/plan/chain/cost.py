"""How long a chain's kernel should take.

Its constants (``chain_*``) were fitted to five shapes of a prototype of the same structure on an H200 (GELU
or SiLU between the GEMMs, widths of 64 to 1024): with the issue slots of its programs within 11 %.  Our
programs are more exact and take more slots, so predictions are longer.  Kernels of this package were not
measured yet.  Good for choosing; a number to quote needs a measurement.
"""

from __future__ import annotations

import math

from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import PlanError
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan import cost as one_gemm
from comfuse.generator.plan.chain import memory
from comfuse.generator.plan.chain.kernel import BLOCK, ROWS, ChainShape, Weights, blocks
from comfuse.generator.plan.choose import plan
from comfuse.generator.plan.gpus import Gpu


def floor_us(chain: ChainSpec, gpu: Gpu, m: int) -> float:
    """Arithmetic at the measured peak or compulsory memory traffic, whichever takes longer."""
    return 1e6 * max(sum(_flops(chain, m)) / gpu.flops, traffic(chain, m) / gpu.bandwidth)


def _flops(chain: ChainSpec, m: int) -> list[float]:
    return [2.0 * m * link.products * link.n * link.k for link in chain.links]


def traffic(chain: ChainSpec, m: int) -> float:
    """Bytes that must pass through global memory: every tensor once, what links hand on not at all."""
    total = sum(one_gemm.traffic(link, m) for link in chain.links)
    return total - sum(2 * m * link.n * link.dtype.nbytes for link in chain.links[:-1])


def predict_us(
    chain: ChainSpec,
    middle: PhaseProgram,
    program: PhaseProgram,
    shape: ChainShape,
    weights: Weights,
    gpu: Gpu,
    m: int,
) -> float:
    """Time of one launch.

    GEMMs with programs and memory traffic compete, and add as squares.
    """
    constants = gpu.constants
    tiles = _quotient(_quotient(m, ROWS), gpu.processors)  # of the busiest CTA
    rows = tiles * ROWS * gpu.processors
    first, second = (1e6 * flops / gpu.flops for flops in _flops(chain, rows))
    if not shape.rows_in_registers:
        first *= constants.chain_shared_rows
    gemms = first + second
    rounds = _quotient(tiles, shape.warpgroups)
    loading = 1e6 * gpu.processors * _loaded(chain, weights, rounds) / gpu.l2_bandwidth
    if weights.residence == "streamed":
        gemms = max(gemms * constants.chain_streaming, loading)
    slots = middle.cost * blocks(chain.links[0].n) * BLOCK + program.cost * chain.last.n
    # Four schedulers of 32 lanes.
    issue = 1e6 * slots * tiles * ROWS / 128 / gpu.clock
    memory_us = 1e6 * constants.of("chain_memory", shape.warpgroups) * traffic(chain, m) / gpu.bandwidth
    before = loading if weights.residence != "streamed" else 0.0
    # With two buffers the tensor cores have work of the same warpgroup meanwhile.
    exposed = constants.of("chain_slots", shape.buffers) * issue
    return math.hypot(gemms + exposed, memory_us) + before + constants.chain_launch_us


def _quotient(a: int, b: int) -> int:
    """Rounded up."""
    return -(-a // b)


def _loaded(chain: ChainSpec, weights: Weights, rounds: int) -> int:
    """Bytes of weights that a CTA loads, once or for each round of its warpgroups' tiles."""
    count = blocks(chain.links[0].n)
    first, second = memory.first_block_bytes(chain) * count, memory.second_block_bytes(chain) * count
    again = {"resident": 0, "resident_first": second, "streamed": first + second}[weights.residence]
    return first + second + again * (rounds - 1)


def apart_us(chain: ChainSpec, gpu: str | Gpu, m: int) -> float:
    """Predicted for a kernel a link, with what they hand on in global memory; infinite if one has none."""
    try:
        return sum(plan(link, gpu, m).predicted_us for link in chain.links)
    except PlanError:
        return math.inf
