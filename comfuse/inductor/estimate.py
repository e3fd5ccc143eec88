"""How long a region takes fused, and how long TorchInductor takes for the same: a model, not a measurement.

Fused is the planner's prediction.  TorchInductor runs the GEMM in a library and what follows it in kernels
that read and write global memory.  Both are corrected by what was measured of regions of the same kind, for
the GPU that was measured and with its own constants (:func:`comfuse.inductor.measured.correction`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import PlanError
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.plan import KernelPlan, cost, plan
from comfuse.generator.plan.chain import ChainPlan
from comfuse.generator.plan.chain import cost as chain_cost
from comfuse.generator.plan.gpus import Gpu, find
from comfuse.generator.spec import FusedSpec, Node, Output, Space
from comfuse.generator.stages import Stage, stages
from comfuse.inductor import measured
from comfuse.inductor.measured import Kind

_LAUNCH_US = 2.0  # of a kernel in a CUDA graph
_TILE = 128  # rows and columns of a library's tile
# A library divides K among SMs where there are too few tiles for all.  Not measured.
_SPLIT_K_SHARE, _SPLIT_K_US = 1.1, 4.0
# What TorchInductor's own GEMM with an epilogue takes, over the library's: without one, 226 us and 187 us
# at 16384, 4096, 1024 (H200, torch 2.11, as max-autotune prints them); the rest is a guess.
_TEMPLATE_SHARE = 1.25


@dataclass(frozen=True)
class Estimate:
    """Times of a region in microseconds.

    Attributes:
        kind: what sort of region it is.
        plans: of its kernels, in the order in which they run.
        fused_us: all of its kernels, and those for what is drawn.
        unfused_us: the library's GEMMs and the kernels behind them; of a chain its links apart, each fused or
            not, or some of them together.
        slower: the name of a workload of its class in which fusing was measured to be slower; None: in none.
    """

    kind: Kind
    plans: tuple[KernelPlan | ChainPlan, ...]
    fused_us: float
    unfused_us: float
    slower: str | None


def estimate(
    program: FusedSpec | ChainSpec,
    m: int,
    *,
    gpu: str | Gpu = "h200",
    template: bool = False,
    drawn: Iterable[int] = (),
    repeated: Sequence[float] | None = None,
) -> Estimate:
    """Both times of a region.

    Args:
        program: the region.
        m: its rows, all batches together.
        gpu: as for :func:`comfuse.generator.plan.plan`, calibrated or not.
        template: whether TorchInductor may put elementwise work behind a GEMM of its own (max-autotune).
        drawn: bytes of each operand that takes a kernel of its own where the region is fused, and is else
            computed in the one behind the GEMM: masks of random numbers.
        repeated: for each link, or the one spec, bytes of (M, N) operands that are not there, since rows or
            batches repeat them.

    Raises:
        PlanError: no kernel can run it.
    """
    target = find(gpu)
    masks = sum(_LAUNCH_US + 1e6 * count / target.bandwidth for count in drawn)
    if isinstance(program, ChainSpec):
        found = _of_chain(program, m, target, template, repeated or [0.0] * len(program.links))
    else:
        found = _of_one(program, m, target, template, repeated[0] if repeated else 0.0)
    return replace(found, fused_us=found.fused_us + masks)


def _of_chain(chain: ChainSpec, m: int, gpu: Gpu, template: bool, repeated: Sequence[float]) -> Estimate:
    one = _chain_plan(chain, m, gpu, sum(repeated))
    first, last = chain.links[0], chain.last
    correction = measured.correction(gpu, Kind.CHAIN, first.n, first.k, last.n)
    fused = max(correction.fused_us(one.predicted_us, m * first.n), one.floor_us)
    links = [
        _of_one(link, m, gpu, template, own, correction.gemm)
        for link, own in zip(chain.links, repeated, strict=True)
    ]
    apart = [sum(min(link.fused_us, link.unfused_us) for link in links)]
    for cut in range(1, len(links)) if len(links) > 2 else ():
        parts = slice(None, cut), slice(cut, None)
        apart.append(sum(_best_us(chain.links[p], m, gpu, template, repeated[p]) for p in parts))
    slower = correction.slower if len(links) == 2 else None  # longer ones were not measured
    return Estimate(Kind.CHAIN, (one,), fused, min(apart), slower)


def _chain_plan(chain: ChainSpec, m: int, gpu: Gpu, repeated: float) -> ChainPlan:
    p = plan(chain, gpu, max(m, 1))
    if not repeated and p.rows_operand is None:
        return p
    floor = chain_cost.floor_us(p.spec, gpu, max(m, 1), repeated)
    programs = p.middle, p.further, p.program
    predicted = chain_cost.predict_us(p.spec, *programs, p.shape, p.weights, gpu, max(m, 1), repeated)
    return replace(p, predicted_us=max(floor, predicted), floor_us=floor)


def _plan(spec: FusedSpec, m: int, gpu: Gpu, repeated: float) -> KernelPlan:
    p = plan(spec, gpu, max(m, 1))
    if not repeated:
        return p
    floor = cost.floor_us(p.spec, gpu, max(m, 1), repeated)
    predicted = cost.predict_us(p.spec, p.program, p.shape, gpu, max(m, 1), repeated)
    return replace(p, predicted_us=max(floor, predicted), floor_us=floor)


def _best_us(
    links: tuple[FusedSpec, ...], m: int, gpu: Gpu, template: bool, repeated: Sequence[float]
) -> float:
    """Of links by themselves; infinite where they are several and no kernel."""
    if len(links) == 1:
        found = _of_one(links[0], m, gpu, template, repeated[0])
    else:
        try:
            found = _of_chain(ChainSpec(links), m, gpu, template, repeated)
        except PlanError:
            return math.inf
    return min(found.fused_us, found.unfused_us)


def _of_one(
    spec: FusedSpec, m: int, gpu: Gpu, template: bool, repeated: float, gemm: float | None = None
) -> Estimate:
    """``gemm``: of a link, the factor of the chain's class for the library; its own kernel has its own."""
    kernels = stages(spec)
    if len(kernels) > 1:  # which of them read what repeats is not looked for
        repeated = 0.0
    plans = tuple(_plan(stage.spec, m, gpu, repeated) for stage in kernels)
    kind = kind_of(plans)
    library = _library_us(spec, max(m, 1), gpu)
    correction = measured.correction(gpu, kind, spec.n, spec.k)
    fused = sum(correction.fused_us(p.predicted_us, m * spec.n) for p in plans)
    gemms = spec.products * library * (correction.gemm if gemm is None else gemm)
    unfused = gemms + sum(_kernels_us(stage, m, gpu, repeated) for stage in kernels)
    if template and kind in (Kind.ELEMENTWISE, Kind.TWO_PRODUCTS):
        unfused = min(
            unfused, _TEMPLATE_SHARE * gemms + 1e6 * (_template_bytes(spec, m) - repeated) / gpu.bandwidth
        )
    floor = sum(p.floor_us for p in plans)
    return Estimate(kind, plans, max(fused, floor), unfused, correction.slower)


def kind_of(plans: tuple[KernelPlan, ...]) -> Kind:
    """The kind of a region whose kernels these are."""
    program = plans[-1].program
    waits = sum(phase.waits for p in plans for phase in p.program.phases)
    if program.spec.products > 1:
        return Kind.TWO_PRODUCTS
    if waits:
        return Kind.ROWS_TWICE if waits > 1 else Kind.ROWS
    axes = {REDUCTIONS[p.program.spec.nodes[r].op].axis for p in plans for r in p.program.reductions}
    if axes & {"col", "full"}:
        return Kind.COLUMNS
    return Kind.ROW_OUTPUTS if axes else Kind.ELEMENTWISE


def _library_us(spec: FusedSpec, m: int, gpu: Gpu) -> float:
    """One GEMM of the region alone, in a library."""
    acc = FusedSpec(
        n=spec.n,
        k=spec.k,
        dtype=spec.dtype,
        operands=(),
        nodes=(Node("acc", "gemm"),),
        outputs=(Output("y", 0, spec.dtype),),
        a_major=spec.a_major,
        b_major=spec.b_major,
        batched=spec.batched,
    )
    alone = plan(acc, gpu, m)
    tiles = -(-m // _TILE) * -(-spec.n // _TILE)
    if tiles >= gpu.processors:
        return alone.predicted_us
    return min(alone.predicted_us, _SPLIT_K_SHARE * alone.floor_us + _SPLIT_K_US)


def _kernels_us(stage: Stage, m: int, gpu: Gpu, repeated: float) -> float:
    """The kernels that read what the library's GEMMs of one stage gave.

    One does everything along rows, with the (M, N) tensors once; one more all reductions over rows, which
    reads at least one (M, N) tensor again.
    """
    spec = stage.spec
    of_node = spaces(spec)
    tile = m * spec.n
    operands = sum(tile * o.dtype.nbytes for o in spec.operands if o.space is Space.TILE) - repeated
    stored = [o for o in spec.outputs if of_node[o.node] not in (Space.ROW, Space.SCALAR)]
    gemms = tile * spec.products * spec.dtype.nbytes
    moved: list[float] = []
    if any(spec.nodes[o.node].op != "gemm" for o in stored) and not _is_bias(spec):
        moved.append(gemms + operands + sum(_bytes(spec, o, m) for o in stored))
    if any(n.op in REDUCTIONS and REDUCTIONS[n.op].axis in ("col", "full") for n in spec.nodes):
        moved.append(tile * spec.dtype.nbytes if stored else gemms + operands)
    return sum(_LAUNCH_US + 1e6 * count / gpu.bandwidth for count in moved)


def _is_bias(spec: FusedSpec) -> bool:
    """Whether the program is a GEMM and a bias (N,), which libraries add themselves."""
    behind = [n for n in spec.nodes if n.op not in ("gemm", "load")]
    return all(n.op == "add" for n in behind) and all(o.space is Space.ROW for o in spec.operands)


def _template_bytes(spec: FusedSpec, m: int) -> float:
    """What an epilogue moves beside its GEMM: (M, N) operands, another GEMM's result, further outputs."""
    tile = m * spec.n
    operands = sum(tile * o.dtype.nbytes for o in spec.operands if o.space is Space.TILE)
    others = tile * spec.dtype.nbytes * (spec.products - 1)
    return operands + others + sum(_bytes(spec, o, m) for o in spec.outputs[1:])


def _bytes(spec: FusedSpec, output: Output, m: int) -> float:
    space = spaces(spec)[output.node]
    elements = {
        Space.TILE: m * spec.n,
        Space.GROUP: m * spec.n // (spec.group or 1),
        Space.COLUMN: m,
        Space.ROW: spec.n,
        Space.SCALAR: 1,
    }
    return float(elements[space] * output.dtype.nbytes)
