"""Which of the possible kernels runs a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import chain

from comfuse.generator.errors import PlanError
from comfuse.generator.passes import normalize
from comfuse.generator.passes.approximate import approximate, approximated
from comfuse.generator.phases import PhaseProgram, axis, split
from comfuse.generator.plan import constraints, cost, gpus, memory
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.plan.kernel_plan import (
    TILE_K,
    KernelPlan,
    Refusal,
    TileShape,
    shapes,
    shapes_to_measure,
)
from comfuse.generator.plan.reasons import summary
from comfuse.generator.plan.registers import registers
from comfuse.generator.spec import FusedSpec, Major


@lru_cache(maxsize=256)
def plan(spec: FusedSpec, gpu: str | Gpu = "h200", m: int | None = None) -> KernelPlan:
    """The fastest kernel for a program, by the cost model.

    Args:
        spec: any valid spec; it is normalised first.
        gpu: a key of :data:`comfuse.generator.plan.gpus.GPUS`, with a number of SMs if it is another
            (``"h100:114"``); or a GPU itself, such as one whose constants were measured anew.
        m: the number of rows to plan for, of all batches together; None: many.  The kernel is right for
            every M up to the plan's ``max_m``; a program for which that is limited needs a number.

    Raises:
        SpecError: the spec is malformed.
        PlanError: no kernel can run it; the message has every constraint that is broken.
    """
    found = candidates(spec, gpu, m)
    plans = [c for c in found if isinstance(c, KernelPlan)]
    if not plans:
        raise PlanError(f"no tile shape fits: {summary(r for r in found if isinstance(r, Refusal))}")
    target, rows = gpus.find(gpu), m or cost.LARGE_M
    # Not by ``predicted_us``, where the floor makes equals.  The first of equals is taken.
    return min(plans, key=lambda p: cost.predict_us(p.spec, p.program, p.shape, target, rows))


def force(
    spec: FusedSpec,
    shape: TileShape,
    gpu: str | Gpu = "h200",
    m: int | None = None,
    stages: int | None = None,
) -> KernelPlan:
    """The plan of one tile shape, for tuning and for the bench.

    Args:
        shape: one of :func:`shapes` or of :func:`shapes_to_measure`.
        stages: one of those of :func:`pipelines`; what :func:`candidates` has if this is None.

    Raises:
        SpecError: the spec is malformed.
        PlanError: this shape, or this number of stages, cannot run it.
    """
    considered = (find(spec, gpu, m) for find in (candidates, candidates_to_measure))
    for candidate in chain.from_iterable(considered):
        if candidate.shape == shape:
            if isinstance(candidate, Refusal):
                raise PlanError(f"{shape.label}: {candidate.reason}")
            return candidate if stages is None else _of_stages(pipelines(candidate), stages)
    known = (*shapes(spec), *shapes_to_measure(spec))
    raise PlanError(f"{shape.label} is none of the planner's: {', '.join(s.name for s in known)}")


def pipelines(candidate: KernelPlan) -> tuple[KernelPlan, ...]:
    """The same tile shape with every other division of shared memory too, most stages first.

    The cost model does not tell them apart.
    """
    gpu = gpus.find(candidate.gpu)
    return tuple(
        replace(
            candidate,
            stages=stages,
            tile_slots=slots,
            shared_bytes=memory.shared_bytes(candidate.program, candidate.shape, stages, slots),
        )
        for stages, slots in memory.pipelines(candidate.program, candidate.shape, gpu.shared_bytes)
    )


def _of_stages(plans: tuple[KernelPlan, ...], stages: int) -> KernelPlan:
    for candidate in plans:
        if candidate.stages == stages:
            return candidate
    allowed = ", ".join(str(p.stages) for p in plans)
    raise PlanError(f"{plans[0].shape.label}: {stages} stages; allowed: {allowed}")


@lru_cache(maxsize=256)
def candidates(
    spec: FusedSpec, gpu: str | Gpu = "h200", m: int | None = None
) -> tuple[KernelPlan | Refusal, ...]:
    """Every tile shape of :func:`shapes`, as a plan or with the reason against it, in that order.

    Raises:
        SpecError: the spec is malformed.
        PlanError: the program itself breaks a constraint, so that no shape can help.
    """
    return _consider_all(spec, gpu, m, shapes)


@lru_cache(maxsize=256)
def candidates_to_measure(
    spec: FusedSpec, gpu: str | Gpu = "h200", m: int | None = None
) -> tuple[KernelPlan | Refusal, ...]:
    """The same of :func:`shapes_to_measure`, whose predicted times nothing was held against."""
    return _consider_all(spec, gpu, m, shapes_to_measure)


def _consider_all(
    spec: FusedSpec,
    gpu: str | Gpu,
    m: int | None,
    shapes_of: Callable[[FusedSpec], tuple[TileShape, ...]],
) -> tuple[KernelPlan | Refusal, ...]:
    target = gpus.find(gpu)
    if m is not None and m < 1:
        raise PlanError(f"m must be at least 1, got {m}")
    spec = normalize(spec)
    for check in constraints.SPEC_CONSTRAINTS:
        if (reason := check(spec)) is not None:
            raise PlanError(reason)
    program = split(approximate(spec))
    return tuple(_consider(spec, program, shape, target, m) for shape in shapes_of(spec))


def row_limits(spec: FusedSpec, gpu: str | Gpu = "h200") -> tuple[int, ...]:
    """The numbers of rows at which tile shapes of a program drop out, ascending; none if all take any M.

    Behind the last one no kernel runs the program.

    Raises:
        SpecError, PlanError: as :func:`candidates` of a single row.
    """
    plans = [c for c in candidates(spec, gpu, 1) if isinstance(c, KernelPlan)]
    return tuple(sorted({p.max_m for p in plans if p.max_m is not None}))


def _consider(
    spec: FusedSpec, program: PhaseProgram, shape: TileShape, gpu: Gpu, rows: int | None
) -> KernelPlan | Refusal:
    stages, slots = memory.stages_and_slots(program, shape, gpu.shared_bytes)
    candidate = constraints.Candidate(spec, program, shape, stages, slots, gpu, rows)
    for check in constraints.SHAPE_CONSTRAINTS:
        if (reason := check(candidate)) is not None:
            return Refusal(shape, check.__name__, *reason)
    m = rows or cost.LARGE_M
    floor = cost.floor_us(spec, gpu, m)
    return KernelPlan(
        spec=spec,
        program=program,
        tile_m=shape.tile_m,
        tile_n=shape.tile_n,
        tile_k=TILE_K,
        cluster_m=shape.cluster_m,
        cluster_n=shape.cluster_n,
        schedule=shape.schedule,
        stages=stages,
        tile_slots=slots,
        scope=_scope(spec, program, shape),
        shared_bytes=memory.shared_bytes(program, shape, stages, slots),
        registers=registers(program, shape),
        decisions=(*program.decisions, *_decisions(spec, program, shape, m)),
        max_m=constraints.most_rows(program, shape, gpu),
        gpu=gpu.name,
        predicted_us=max(floor, cost.predict_us(spec, program, shape, gpu, m)),
        floor_us=floor,
    )


def _scope(spec: FusedSpec, program: PhaseProgram, shape: TileShape) -> str:
    if not any(axis(program.spec, r) == "row" for r in program.reductions):
        return "none"
    if shape.tiles_n(spec.n) == 1:
        return "tile"
    if memory.in_cluster(program, shape):
        return "cluster"
    return "row_group" if program.waits else "row_tail"


def _decisions(spec: FusedSpec, program: PhaseProgram, shape: TileShape, m: int) -> tuple[str, ...]:
    said = [f"{shape.label}, planned for M = {m}", *approximated(program.spec)]
    tiles = shape.tiles_n(spec.n)
    how = {
        "tile": "one tile holds whole rows",
        "cluster": f"the {tiles} tiles of a row block exchange partials within their cluster",
        "row_group": f"the {tiles} tiles of a row block exchange partials",
        "row_tail": f"the last of the {tiles} tiles of a row block merges the partials of all",
    }.get(_scope(spec, program, shape))
    if how is not None:
        said.append(f"row reductions: {how}")
    if tiles % shape.cluster_n:
        said.append(f"{tiles} tiles a row block in clusters of {shape.cluster_n}: one is a phantom")
    if any(memory.streamed(spec, phase) for phase in program.phases):
        said.append("tile operands stream through shared memory in chunks of 32 columns")
    return (*said, *_layouts(spec))


def _layouts(spec: FusedSpec) -> list[str]:
    said = []
    for number, pair in enumerate(spec.pairs):
        which = "" if spec.second is None else number
        if pair.a_major is Major.MN:
            said.append(f"A{which} is contiguous along M: it is loaded and multiplied as it lies")
        if pair.b_major is Major.MN:
            said.append(f"B{which} is contiguous along N: it is loaded and multiplied as it lies")
    if not cost.loads_permuted(spec):
        said.append("threads hold pairs of columns, or trade accumulators for runs of eight if they must")
    return said
