"""How long a kernel should take, from what it computes and the measured constants of a GPU.

Good for choosing; a number to quote needs a measurement.  ``python -m bench model-error`` holds predictions
against everything that was measured.
"""

from __future__ import annotations

import math

from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import PhaseProgram, axis
from comfuse.generator.phases.access import RUN
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.plan.kernel_plan import SCHEDULES, TileShape
from comfuse.generator.plan.memory import in_cluster
from comfuse.generator.spec import FusedSpec, Major, Space

LARGE_M = 16384  # the M to plan for if none is given

BAND = 16  # row blocks that read B together, where tiles do not wait for their row block


def floor_us(spec: FusedSpec, gpu: Gpu, m: int, repeated: float = 0.0) -> float:
    """Arithmetic at the measured peak or compulsory memory traffic, whichever takes longer."""
    flops = 2.0 * m * _columns(spec, spec.n) * _k(spec)
    return 1e6 * max(flops / gpu.flops, traffic(spec, m, repeated) / gpu.bandwidth)


def loads_permuted(spec: FusedSpec) -> bool:
    """Whether TMA deals each thread runs of eight columns (csrc/include/comfuse/sm90/mainloop.hpp)."""
    k_major = all(pair.b_major is Major.K for pair in spec.pairs)
    return k_major and not spec.batched and spec.n % RUN == 0


def _columns(spec: FusedSpec, n: int) -> int:
    """Columns of all products of an A, which are multiplied together."""
    return spec.products_of_a * n


def _k(spec: FusedSpec) -> int:
    """Of all As, one behind the other."""
    return sum(pair.k for pair in spec.pairs)


def traffic(spec: FusedSpec, m: int, repeated: float = 0.0) -> float:
    """Bytes that must pass through global memory: every tensor once.  Batches share B in this count.

    ``repeated``: bytes of (M, N) operands that are not there, since rows or batches repeat them.
    """
    elements = {
        Space.TILE: m * spec.n,
        Space.GROUP: m * spec.n // (spec.group or 1),
        Space.ROW: spec.n,
        Space.COLUMN: m,
        Space.SCALAR: 0,
    }
    space = spaces(spec)
    total = (m + _columns(spec, spec.n)) * _k(spec) * spec.dtype.nbytes
    total += sum(elements[o.space] * o.dtype.nbytes for o in spec.operands)
    total += sum(elements[space[o.node]] * o.dtype.nbytes for o in spec.outputs)
    return float(total) - repeated


def predict_us(
    spec: FusedSpec, program: PhaseProgram, shape: TileShape, gpu: Gpu, m: int, repeated: float = 0.0
) -> float:
    """Time of one launch in microseconds.  It may come out below what is possible (:func:`floor_us`).

    GEMM with epilogues and memory traffic compete, and add as squares.  Long launches run at a lower clock.
    """
    constants = gpu.constants
    clusters = gpu.processors // shape.cluster_size
    work = shape.clusters_m(m) * shape.clusters_n(spec.n)
    waves = -(-work // clusters)
    mainloop = _mainloop_us(spec, shape, gpu)
    if spec.n % shape.tile_n:
        mainloop *= constants.clipped
    alone = SCHEDULES[shape.schedule].teams == 1
    if program.waits and alone and _straddles(shape, spec.n, work, clusters):
        mainloop *= constants.straddling
    # Waiting tiles go row block by row block, so that each wave reads all of B if N is wide.
    passes = waves if program.waits else min(waves, -(-m // (shape.tile_m * BAND)))
    b_bytes = _columns(spec, spec.n) * _k(spec) * spec.dtype.nbytes
    b_again = (passes - 1) * max(0.0, b_bytes - constants.kept_of_b)
    memory = 1e6 * constants.memory_share * (traffic(spec, m, repeated) + b_again) / gpu.bandwidth
    exchange = _column_exchange_us(program, shape, gpu, m)
    tile = mainloop + _epilogue_us(spec, program, shape, gpu)
    tiles = tile + (waves - 1) * max(tile, _collector_us(program, shape, gpu))
    tiles *= 1 + constants.throttle * (1 - math.exp(-tiles / constants.throttle_us))
    return math.hypot(tiles, memory) + exchange + constants.launch_us


def _column_exchange_us(program: PhaseProgram, shape: TileShape, gpu: Gpu, m: int) -> float:
    """To exchange partials between the tiles of a block of columns.  Nothing hides it."""
    at_once = 8 if program.spec.products * shape.tile_n > 128 else 16  # row blocks whose words a thread loads
    rounds = -(-m // (shape.tile_m * at_once))
    count = sum(phase.columns_wait for phase in program.phases)
    cycles = gpu.constants.column_exchange_cycles + rounds * gpu.constants.column_round_cycles
    return 1e6 * count * cycles / gpu.clock


def _collector_us(program: PhaseProgram, shape: TileShape, gpu: Gpu) -> float:
    """What the column sums of a tile take the one warp of a CTA that collects them."""
    sums = sum(axis(program.spec, r) == "col" for r in program.reductions)
    if sums == 0 or program.columns_wait:
        return 0.0
    rounds = sums * shape.tile_n / 64
    constants = gpu.constants
    return 1e6 * (constants.collector_cycles + rounds * constants.collector_round_cycles) / gpu.clock


def _straddles(shape: TileShape, n: int, work: int, clusters: int) -> bool:
    """Whether some row block's tiles run in two waves.  The launcher avoids it where that is free."""
    whole = clusters // shape.clusters_n(n) * shape.clusters_n(n)
    return whole == 0 or -(-work // whole) > -(-work // clusters)


def _mainloop_us(spec: FusedSpec, shape: TileShape, gpu: Gpu) -> float:
    columns = _columns(spec, shape.tile_n)
    efficiency = gpu.constants.of("efficiency", shape.schedule, columns)
    # A cluster along M counts as one along N does, but for what it loads: it was not measured.
    if shape.cluster_size == 1:
        efficiency *= gpu.constants.single_cta
    flops = 2.0 * shape.tile_m * columns * _k(spec)
    arithmetic = flops * gpu.processors / gpu.flops
    loaded = (shape.tile_m / shape.cluster_n + columns / shape.cluster_m) * _k(spec) * spec.dtype.nbytes
    return 1e6 * max(arithmetic, loaded * gpu.processors / gpu.l2_bandwidth) / efficiency


def _epilogue_us(spec: FusedSpec, program: PhaseProgram, shape: TileShape, gpu: Gpu) -> float:
    """What a tile takes longer for its epilogue.

    Where that runs beside the other team's GEMM it still takes issue slots and shared memory from it.
    """
    constants = gpu.constants
    slots = program.cost + (0.0 if loads_permuted(spec) else constants.trade_slots * spec.products)
    cycles = constants.refill_cycles if SCHEDULES[shape.schedule].teams == 1 else 0.0
    # Four schedulers of 32 lanes.
    cycles += constants.of("slot_cycles", shape.schedule) * slots * shape.tile_m * shape.tile_n / 128
    tiles = shape.tiles_n(spec.n)
    if tiles > 1:
        if in_cluster(program, shape):
            wait = constants.of("cluster_exchange_cycles", shape.schedule)
        else:
            wait = constants.of("exchange_cycles", shape.schedule) + constants.exchange_tile_cycles * tiles
        cycles += wait * sum(phase.waits for phase in program.phases)
        cycles += constants.tail_cycles * (program.row_tail is not None)
    tails = ("full",) if program.columns_wait else ("col", "full")
    tailed = {axis(program.spec, r) for r in program.reductions}.intersection(tails)
    cycles += constants.tail_cycles * len(tailed)
    return 1e6 * cycles / gpu.clock
