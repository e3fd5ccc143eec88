"""How long a kernel should take.  A few constants, fitted to measurements on an H200 of

    y = layer_norm(a @ b.T + bias + residual) * weight + bias

for eight (M, N, K), pingpong 128x128 and 128x192, cooperative 128x256: within 7 % of all of them, and the
same tile shape is best each time.  Good for choosing; a number to quote needs a measurement.
"""

from __future__ import annotations

import math

from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.plan.kernel_plan import SCHEDULES, TileShape
from comfuse.generator.spec import FusedSpec, Space

LARGE_M = 16384  # the M to plan for if none is given
DEFAULT_SHAPE = TileShape("pingpong", 128, 128, 2)

# Share of the measured peak that the GEMM alone reaches.  Above 1: the peak was measured with a smaller tile.
_EFFICIENCY = {
    ("pingpong", 64): 0.85,
    ("pingpong", 128): 0.97,
    ("pingpong", 192): 0.98,
    ("pingpong2", 128): 0.93,  # not measured
    ("cooperative", 64): 0.8,  # not measured
    ("cooperative", 128): 0.92,  # not measured
    ("cooperative", 256): 1.04,
}
_SINGLE_CTA_EFFICIENCY = 0.97  # no neighbour to share the rows of A with
_STRADDLING = 1.08  # cost of a row block whose tiles run in two waves, if nothing hides the wait
_CLIPPED = 1.03  # a last tile that the matrix does not fill
# To start an epilogue; where nothing runs beside it, to fill the GEMM's pipeline again too.
_EPILOGUE_CYCLES = {"pingpong": 600.0, "pingpong2": 600.0, "cooperative": 1400.0}
# Between the tiles of a row, each time.
_EXCHANGE_CYCLES = {"pingpong": 3400.0, "pingpong2": 3400.0, "cooperative": 200.0}
_CYCLES_PER_SLOT = {"pingpong": 1.5, "pingpong2": 1.5, "cooperative": 0.9}  # fewer warps hide less latency


def floor_us(spec: FusedSpec, gpu: Gpu, m: int) -> float:
    """Arithmetic at the measured peak or compulsory memory traffic, whichever takes longer."""
    return 1e6 * max(2.0 * m * spec.n * spec.k / gpu.flops, traffic(spec, m) / gpu.bandwidth)


def traffic(spec: FusedSpec, m: int) -> float:
    """Bytes that must pass through global memory: every tensor once."""
    elements = {Space.TILE: m * spec.n, Space.ROW: spec.n, Space.COLUMN: m, Space.SCALAR: 0}
    total = (m + spec.n) * spec.k * spec.dtype.nbytes
    total += sum(elements[o.space] * o.dtype.nbytes for o in spec.operands)
    total += sum(elements[spaces(spec)[o.node]] * o.dtype.nbytes for o in spec.outputs)
    return float(total)


def predict_us(spec: FusedSpec, program: PhaseProgram, shape: TileShape, gpu: Gpu, m: int) -> float:
    """Time of one launch, never below the floor."""
    return max(floor_us(spec, gpu, m), _launch_us(spec, program, shape, gpu, m))


def caution(spec: FusedSpec, shape: TileShape) -> float:
    """What to multiply a prediction by before comparing it with others.

    For K up to 2048 the default shape was the best of those measured every time; another must promise
    more than the model's error to be taken.
    """
    return 1.0 if shape == DEFAULT_SHAPE or spec.k > 2048 else 1.06


def _launch_us(spec: FusedSpec, program: PhaseProgram, shape: TileShape, gpu: Gpu, m: int) -> float:
    """GEMM, hidden epilogues and memory traffic compete, and add as squares."""
    clusters = gpu.processors // shape.cluster_n
    if shape.resident:
        clusters = max(1, clusters // shape.clusters_n(spec.n)) * shape.clusters_n(spec.n)
    work = -(-m // shape.tile_m) * shape.clusters_n(spec.n)
    waves = -(-work // clusters)
    mainloop = waves * _mainloop_us(spec, shape, gpu)
    if spec.n % shape.tile_n:
        mainloop *= _CLIPPED
    alone = SCHEDULES[shape.schedule].teams == 1
    if program.reductions and alone and _straddles(shape, spec.n, work, clusters):
        mainloop *= _STRADDLING
    epilogue = _epilogue_us(spec, program, shape, gpu)
    memory = 1e6 * traffic(spec, m) / gpu.bandwidth
    if alone:
        return math.hypot(mainloop + waves * epilogue, memory)
    # Two epilogues run beside a mainloop; the last one is exposed.
    return math.hypot(mainloop, waves * epilogue / 2, memory) + epilogue


def _straddles(shape: TileShape, n: int, work: int, clusters: int) -> bool:
    """Whether some row block's tiles run in two waves.  The launcher avoids it where that is free."""
    whole = clusters // shape.clusters_n(n) * shape.clusters_n(n)
    return whole == 0 or -(-work // whole) > -(-work // clusters)


def _mainloop_us(spec: FusedSpec, shape: TileShape, gpu: Gpu) -> float:
    efficiency = _EFFICIENCY[shape.schedule, shape.tile_n]
    if shape.cluster_n == 1:
        efficiency *= _SINGLE_CTA_EFFICIENCY
    flops = 2.0 * shape.tile_m * shape.tile_n * spec.k
    arithmetic = flops * gpu.processors / (gpu.flops * efficiency)
    rows_loaded = shape.tile_m / shape.cluster_n + (0 if shape.resident else shape.tile_n)
    loaded = rows_loaded * spec.k * spec.dtype.nbytes
    return 1e6 * max(arithmetic, loaded * gpu.processors / gpu.l2_bandwidth)


def _epilogue_us(spec: FusedSpec, program: PhaseProgram, shape: TileShape, gpu: Gpu) -> float:
    slots = program.cost * shape.tile_m * shape.tile_n / 128  # four schedulers of 32 lanes
    exchanges = sum(bool(phase.reductions) for phase in program.phases) if shape.tiles_n(spec.n) > 1 else 0
    cycles = (
        _EPILOGUE_CYCLES[shape.schedule]
        + _CYCLES_PER_SLOT[shape.schedule] * slots
        + _EXCHANGE_CYCLES[shape.schedule] * exchanges
    )
    return 1e6 * cycles / gpu.clock
