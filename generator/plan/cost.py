"""How long a kernel should take.  A few constants, fitted to measurements on an H200 of

    y = layer_norm(a @ b.T + bias + residual) * weight + bias

and of the GEMM alone, for eight (M, N, K): pingpong and pingpong2 128x128, cooperative 128x256, all in
clusters of two.  Within 8 % of all of them, and the same tile shape is best each time.  Good for choosing; a
number to quote needs a measurement.
"""

from __future__ import annotations

import math

from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import PhaseProgram, axis
from comfuse.generator.phases.access import RUN
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.plan.kernel_plan import SCHEDULES, TileShape
from comfuse.generator.spec import FusedSpec, Major, Space

LARGE_M = 16384  # the M to plan for if none is given

# Share of the measured peak that the multiplying loop reaches.  Above 1: epilogues and waits are counted
# apart, and the peak was measured on a long GEMM, which runs at a lower clock.
_EFFICIENCY = {
    ("pingpong", 64): 0.96,
    ("pingpong", 128): 1.1,
    ("pingpong2", 128): 1.065,
    ("cooperative", 64): 0.87,  # not measured
    ("cooperative", 128): 1.0,  # not measured
    ("cooperative", 256): 1.125,
}
_SINGLE_CTA_EFFICIENCY = 0.97  # no neighbour to share the rows of A with
_STRADDLING = 1.08  # cost of a row block whose tiles run in two waves, if nothing hides the wait
_CLIPPED = 1.03  # a last tile that the matrix does not fill
_LAUNCH_US = 4.5  # with the first tile's loads and the last one's stores
# Cycles of an epilogue that its tile takes longer for it: a slot of each of the four schedulers, and once.
# Where it runs beside the other team's GEMM it still takes issue slots and shared memory from it.
_CYCLES_PER_SLOT = {"pingpong": 0.88, "pingpong2": 0.88, "cooperative": 0.95}
_EPILOGUE_CYCLES = {"pingpong": 0.0, "pingpong2": 0.0, "cooperative": 2000.0}  # to refill the pipeline
_EXCHANGE_CYCLES = 500.0  # between the tiles of a row, each time that they wait
# Between the tiles of a block of columns: to merge the warps', and until the first words are read; then for
# each round of loads.  Nothing hides it.  Not measured.
_COLUMN_EXCHANGE_CYCLES, _COLUMN_ROUND_CYCLES = 3000.0, 1200.0
_TAIL_CYCLES = 400.0  # to hand partials to the last tile, for each kind of tail; not measured
# Slots an element to trade accumulators where B was not permuted: 16 shuffles and 48 selects for 16 values.
_TRADE_SLOTS = 4.0
# Share of the time of memory traffic that counts: with twice the threads more loads are under way.
_MEMORY = {"pingpong": 1.0, "pingpong2": 0.93, "cooperative": 1.0}
_KEPT_OF_B = 5e6  # bytes that stay in L2 from pass to pass, with A and the epilogue's tensors passing by
BAND = 16  # row blocks that read B together, where tiles do not wait for their row block


def floor_us(spec: FusedSpec, gpu: Gpu, m: int) -> float:
    """Arithmetic at the measured peak or compulsory memory traffic, whichever takes longer."""
    return 1e6 * max(2.0 * m * _columns(spec, spec.n) * spec.k / gpu.flops, traffic(spec, m) / gpu.bandwidth)


def loads_permuted(spec: FusedSpec) -> bool:
    """Whether TMA deals each thread runs of eight columns (csrc/include/comfuse/sm90/mainloop.hpp)."""
    return spec.b_major is Major.K and not spec.batched and spec.n % RUN == 0


def _columns(spec: FusedSpec, n: int) -> int:
    """Columns of all products."""
    return spec.products * n


def traffic(spec: FusedSpec, m: int) -> float:
    """Bytes that must pass through global memory: every tensor once.  Batches share B in this count."""
    elements = {
        Space.TILE: m * spec.n,
        Space.GROUP: m * spec.n // (spec.group or 1),
        Space.ROW: spec.n,
        Space.COLUMN: m,
        Space.SCALAR: 0,
    }
    total = (m + _columns(spec, spec.n)) * spec.k * spec.dtype.nbytes
    total += sum(elements[o.space] * o.dtype.nbytes for o in spec.operands)
    total += sum(elements[spaces(spec)[o.node]] * o.dtype.nbytes for o in spec.outputs)
    return float(total)


def predict_us(spec: FusedSpec, program: PhaseProgram, shape: TileShape, gpu: Gpu, m: int) -> float:
    """Time of one launch.  Long GEMMs come out up to 5 % below what is possible (:func:`floor_us`).

    GEMM with epilogues and memory traffic compete, and add as squares.
    """
    clusters = gpu.processors // shape.cluster_n
    work = -(-m // shape.tile_m) * shape.clusters_n(spec.n)
    waves = -(-work // clusters)
    mainloop = _mainloop_us(spec, shape, gpu)
    if spec.n % shape.tile_n:
        mainloop *= _CLIPPED
    alone = SCHEDULES[shape.schedule].teams == 1
    if program.waits and alone and _straddles(shape, spec.n, work, clusters):
        mainloop *= _STRADDLING
    # Waiting tiles go row block by row block, so that each wave reads all of B if N is wide.
    passes = waves if program.waits else min(waves, -(-m // (shape.tile_m * BAND)))
    b_again = (passes - 1) * max(0.0, _columns(spec, spec.n) * spec.k * spec.dtype.nbytes - _KEPT_OF_B)
    memory = 1e6 * _MEMORY[shape.schedule] * (traffic(spec, m) + b_again) / gpu.bandwidth
    exchange = _column_exchange_us(program, shape, gpu, m)
    tiles = waves * (mainloop + _epilogue_us(spec, program, shape, gpu))
    return math.hypot(tiles, memory) + exchange + _LAUNCH_US


def _column_exchange_us(program: PhaseProgram, shape: TileShape, gpu: Gpu, m: int) -> float:
    at_once = 8 if _columns(program.spec, shape.tile_n) > 128 else 16  # row blocks whose words a thread loads
    rounds = -(-m // (shape.tile_m * at_once))
    count = sum(phase.columns_wait for phase in program.phases)
    return 1e6 * count * (_COLUMN_EXCHANGE_CYCLES + rounds * _COLUMN_ROUND_CYCLES) / gpu.clock


def _straddles(shape: TileShape, n: int, work: int, clusters: int) -> bool:
    """Whether some row block's tiles run in two waves.  The launcher avoids it where that is free."""
    whole = clusters // shape.clusters_n(n) * shape.clusters_n(n)
    return whole == 0 or -(-work // whole) > -(-work // clusters)


def _mainloop_us(spec: FusedSpec, shape: TileShape, gpu: Gpu) -> float:
    columns = _columns(spec, shape.tile_n)
    efficiency = _EFFICIENCY[shape.schedule, columns]
    if shape.cluster_n == 1:
        efficiency *= _SINGLE_CTA_EFFICIENCY
    flops = 2.0 * shape.tile_m * columns * spec.k
    arithmetic = flops * gpu.processors / gpu.flops
    loaded = (shape.tile_m / shape.cluster_n + columns) * spec.k * spec.dtype.nbytes
    return 1e6 * max(arithmetic, loaded * gpu.processors / gpu.l2_bandwidth) / efficiency


def _epilogue_us(spec: FusedSpec, program: PhaseProgram, shape: TileShape, gpu: Gpu) -> float:
    slots = program.cost + (0.0 if loads_permuted(spec) else _TRADE_SLOTS * spec.products)
    cycles = _EPILOGUE_CYCLES[shape.schedule]
    # Four schedulers of 32 lanes.
    cycles += _CYCLES_PER_SLOT[shape.schedule] * slots * shape.tile_m * shape.tile_n / 128
    if shape.tiles_n(spec.n) > 1:
        cycles += _EXCHANGE_CYCLES * sum(phase.waits for phase in program.phases)
        cycles += _TAIL_CYCLES * (program.row_tail is not None)
    tails = ("full",) if program.columns_wait else ("col", "full")
    cycles += _TAIL_CYCLES * len({a for r in program.reductions if (a := axis(spec, r)) in tails})
    return 1e6 * cycles / gpu.clock
