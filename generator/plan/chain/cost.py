"""How long a chain's kernel should take.

Products and issue slots of an SM mostly add up: a warpgroup either multiplies or computes, and two or three
of them overlap little.  What does overlap is in the constants (``chain_*``), which
``python -m bench fit-chains`` fits to what was measured.  Good for choosing; a number to quote needs a
measurement.
"""

from __future__ import annotations

import math
from collections import Counter

from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import PlanError
from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan import cost as one_gemm
from comfuse.generator.plan.chain import memory, vectors
from comfuse.generator.plan.chain.kernel import BLOCK, ROWS, ChainShape, Weights, blocks
from comfuse.generator.plan.choose import plan
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.spec import Space


def floor_us(chain: ChainSpec, gpu: Gpu, m: int, repeated: float = 0.0) -> float:
    """Arithmetic at the measured peak or compulsory memory traffic, whichever takes longer."""
    return 1e6 * max(sum(_flops(chain, m)) / gpu.flops, traffic(chain, m, repeated) / gpu.bandwidth)


def _flops(chain: ChainSpec, m: int) -> list[float]:
    return [2.0 * m * link.products * link.n * link.k for link in chain.links]


def traffic(chain: ChainSpec, m: int, repeated: float = 0.0) -> float:
    """Bytes that must pass through global memory: every tensor once, what links hand on not at all.

    ``repeated``: as of one GEMM, of all links.
    """
    total = sum(one_gemm.traffic(link, m) for link in chain.links) - repeated
    return total - sum(2 * m * link.n * link.dtype.nbytes for link in chain.links[:-1])


def repeated(chain: ChainSpec, rows_operand: int | None, m: int) -> float:
    """Bytes of what may be A (:mod:`.rows`), and is taken to be A: memory is read once for both."""
    return 0.0 if rows_operand is None else float(m * chain.last.n * chain.last.dtype.nbytes)


def predict_us(
    chain: ChainSpec,
    middle: PhaseProgram,
    further: tuple[PhaseProgram, ...],
    program: PhaseProgram,
    shape: ChainShape,
    weights: Weights,
    gpu: Gpu,
    m: int,
    repeated: float = 0.0,
) -> float:
    """Time of one launch in microseconds.  It may come out below what is possible (:func:`floor_us`).

    GEMMs and programs of the busiest CTA's tiles take turns.  Memory traffic runs beside them: the longer of
    both counts, and where they are near each other a little more (they add as fourth powers).
    """
    constants = gpu.constants
    tiles = _quotient(_quotient(m, ROWS), gpu.processors)  # of the busiest CTA
    flops = _flops(chain, tiles * ROWS * gpu.processors)
    gemms = 1e6 * sum(flops) / gpu.flops / constants.chain_efficiency
    staying, passing = _loaded(chain, weights)
    rounds = _quotient(tiles, shape.warpgroups)
    gemms = max(gemms, _loading_us(rounds * passing, gpu))
    first_two = gemms / tiles * sum(flops[:2]) / sum(flops)
    programs = _middle_us(chain, middle, shape, gpu, first_two) + _behind_us(program, shape, gpu)
    programs += sum(_further_us(between, shape, gpu) for between in further)
    memory_us = 1e6 * traffic(chain, m, repeated) / gpu.bandwidth
    busy = gemms + tiles * programs
    both = math.sqrt(math.hypot(busy * busy, memory_us * memory_us))
    return constants.launch_us + _loading_us(staying, gpu) + both  # nothing runs before what stays has come


def _middle_us(chain: ChainSpec, middle: PhaseProgram, shape: ChainShape, gpu: Gpu, gemms_us: float) -> float:
    """What a tile takes longer for the program between its first two GEMMs, which take ``gemms_us``."""
    constants = gpu.constants
    count = blocks(chain.links[0].n)
    slots = _slots(middle) * count * BLOCK
    online = len(middle.phases) > 1
    if online:  # what was accumulated is scaled in each block
        slots += count * chain.links[1].n
    us = constants.of("chain_slot_cycles", shape.warpgroups) * _slots_us(slots, gpu)
    if online:  # and that waits for the products too, whatever the buffers
        return us + 1e6 * constants.chain_peak_cycles * count / gpu.clock
    if shape.buffers == 1:
        return us
    # Beside a block's middle run the first GEMM of the next block and the second one of the block before.
    beside = gemms_us * (count - 1) / count
    hidden = constants.of("chain_hidden", "registers" if shape.rows_in_registers else "shared")
    return us - hidden * min(us, beside)


def _further_us(program: PhaseProgram, shape: ChainShape, gpu: Gpu) -> float:
    """What a tile takes longer for a program between later GEMMs, beside which none of its own runs.

    As a first middle with one buffer; no constant of its own was measured.
    """
    slots = _slots(program) * program.spec.n
    return gpu.constants.of("chain_slot_cycles", shape.warpgroups) * _slots_us(slots, gpu)


def _behind_us(program: PhaseProgram, shape: ChainShape, gpu: Gpu) -> float:
    """What a tile takes longer for the program behind all GEMMs."""
    cycles = gpu.constants.of("chain_behind_cycles", shape.warpgroups)
    return cycles * _slots_us(_slots(program) * program.spec.n, gpu)


def _slots(program: PhaseProgram) -> float:
    """Of an element, fewer than priced.

    Values a column are computed once (:mod:`.vectors`), and a product that is a term of one sum is one
    instruction with it.
    """
    spec = program.spec
    computed = vectors.computed(spec)
    space, reads = spaces(spec), Counter(j for node in spec.nodes for j in node.inputs)
    saved = 0.0
    terms = {j for node in spec.nodes if node.op in ("add", "sub") for j in node.inputs}
    for i, node in enumerate(spec.nodes):
        once = i in computed and node.op in ELEMENTWISE
        fused = space[i] is Space.TILE and node.op == "mul" and i in terms and reads[i] == 1
        if once or fused:
            saved += ELEMENTWISE[node.op].cost
    return program.cost - saved


def _slots_us(slots: float, gpu: Gpu) -> float:
    """Of a tile's rows, were each slot one cycle of four schedulers of 32 lanes."""
    return 1e6 * slots * ROWS / 128 / gpu.clock


def _quotient(a: int, b: int) -> int:
    """Rounded up."""
    return -(-a // b)


def _loaded(chain: ChainSpec, weights: Weights) -> tuple[int, int]:
    """Bytes of weights that a CTA loads once, and for each round of its warpgroups' tiles."""
    first, later = memory.first_bytes(chain), memory.later_bytes(chain)
    staying = {"resident": first + later, "resident_first": first, "streamed": 0}[weights.residence]
    return staying, first + later - staying


def _loading_us(nbytes: int, gpu: Gpu) -> float:
    """By every CTA, from L2."""
    return 1e6 * gpu.processors * nbytes / gpu.l2_bandwidth


def apart_us(chain: ChainSpec, gpu: str | Gpu, m: int) -> float:
    """Predicted for a kernel a link, with what they hand on in global memory; infinite if one has none."""
    try:
        return sum(plan(link, gpu, m).predicted_us for link in chain.links)
    except PlanError:
        return math.inf
