"""Whether a chain runs as one kernel, and which."""

from __future__ import annotations

import math
from functools import lru_cache

from comfuse.generator.chain import ChainSpec, normalize_chain
from comfuse.generator.deferral import Deferred, defer
from comfuse.generator.errors import PlanError
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes.approximate import (
    approximate,
    approximate_handed_on,
    approximated,
    multiplied,
)
from comfuse.generator.phases import PhaseProgram, split
from comfuse.generator.plan import gpus
from comfuse.generator.plan.chain import constraints, cost, memory, registers
from comfuse.generator.plan.chain.kernel import (
    BLOCK,
    CHAIN_SHAPES,
    ChainPlan,
    ChainRefusal,
    ChainShape,
    tile_columns,
)
from comfuse.generator.plan.chain.middle import split_further, split_middle
from comfuse.generator.plan.chain.rows import operand_of_rows
from comfuse.generator.plan.choose import plan
from comfuse.generator.plan.cost import LARGE_M
from comfuse.generator.plan.reasons import summary
from comfuse.generator.spec import FusedSpec

#: Of the time of several kernels: one kernel has to be clearly faster, as the cost model is not off by the
#: same for both.
MARGIN = 0.95


@lru_cache(maxsize=256)
def plan_chain(chain: ChainSpec, gpu: str | gpus.Gpu = "h200", m: int | None = None) -> ChainPlan:
    """The fastest kernel for a chain, by the cost model.

    Args:
        chain: any valid chain; it is normalised first.
        gpu: a key of :data:`comfuse.generator.plan.gpus.GPUS`, as :func:`comfuse.generator.plan.plan` takes.
        m: the number of rows to plan for; None: many.  The kernel is right for every M.

    Raises:
        SpecError: the chain is malformed.
        PlanError: no kernel can run it, or one is not predicted to be clearly faster (:data:`MARGIN`) than a
            kernel a link, or one for some of them; the message has every reason.
    """
    best = _fastest(chain, gpu, m)
    if best.predicted_us >= MARGIN * best.apart_us:
        first, *between, last = (link.n for link in best.spec.links)
        compared = "faster" if best.apart_us <= best.predicted_us else "hardly slower"
        apart = "for each GEMM is" if not between else "for each GEMM, or for two of them, is"
        widths = ", ".join(f"H = {n}" for n in (first, *between))
        raise PlanError(
            f"a kernel {apart} {compared}: predicted {best.apart_us:.0f} us, as one"
            f" {best.predicted_us:.0f} us, for M = {m or LARGE_M}, K = {best.spec.links[0].k}, {widths},"
            f" N = {last}"
        )
    return best


def _apart_us(chain: ChainSpec, gpu: str | gpus.Gpu, m: int) -> float:
    """Predicted for several kernels: one a link, or where that is faster one for some links in a row."""
    links = chain.links
    found = [cost.apart_us(chain, gpu, m)]
    for cut in range(1, len(links)) if len(links) > 2 else ():
        found.append(_parts_us(links[:cut], gpu, m) + _parts_us(links[cut:], gpu, m))
    return min(found)


def _parts_us(links: tuple[FusedSpec, ...], gpu: str | gpus.Gpu, m: int) -> float:
    """Predicted for a kernel of these links, or for several; infinite if there are none."""
    try:
        if len(links) == 1:
            return plan(links[0], gpu, m).predicted_us
        best = _fastest(ChainSpec(links), gpu, m)
    except PlanError:
        return math.inf if len(links) == 1 else cost.apart_us(ChainSpec(links), gpu, m)
    return min(best.predicted_us, best.apart_us)


def _fastest(chain: ChainSpec, gpu: str | gpus.Gpu, m: int | None) -> ChainPlan:
    found = chain_candidates(chain, gpu, m)
    plans = [c for c in found if isinstance(c, ChainPlan)]
    if not plans:
        raise PlanError(f"no shape fits: {summary(r for r in found if isinstance(r, ChainRefusal))}")
    # Of equals the one that leaves the compiler the most registers.
    return min(plans, key=lambda p: (p.predicted_us, p.registers))


def force_chain(
    chain: ChainSpec, shape: ChainShape | None = None, gpu: str | gpus.Gpu = "h200", m: int | None = None
) -> ChainPlan:
    """The plan of one shape, or of the fastest, whatever a kernel a link would take.

    For tuning, tests and the bench.

    Raises:
        SpecError: the chain is malformed.
        PlanError: this shape, or every one, cannot run it.
    """
    if shape is None:
        return _fastest(chain, gpu, m)
    for candidate in chain_candidates(chain, gpu, m):
        if candidate.shape == shape:
            if isinstance(candidate, ChainRefusal):
                raise PlanError(f"{shape.label}: {candidate.reason}")
            return candidate
    raise PlanError(f"{shape.label} is none of the planner's: {', '.join(s.name for s in CHAIN_SHAPES)}")


def check_chain(chain: ChainSpec) -> ChainSpec:
    """The canonical form of a chain that some kernel may run.

    Raises:
        SpecError: the chain is malformed.
        PlanError: it breaks a constraint, so that no shape and no GPU can help.
    """
    chain = normalize_chain(chain)
    if (reason := constraints.unsupported(chain)) is not None:
        raise PlanError(reason)
    return chain


@lru_cache(maxsize=256)
def chain_candidates(
    chain: ChainSpec, gpu: str | gpus.Gpu = "h200", m: int | None = None
) -> tuple[ChainPlan | ChainRefusal, ...]:
    """Every shape of :data:`CHAIN_SHAPES`, as a plan or with the reason against it, in that order.

    Raises:
        SpecError: the chain is malformed.
        PlanError: the chain itself breaks a constraint, so that no shape can help.
    """
    target = gpus.find(gpu)
    if m is not None and m < 1:
        raise PlanError(f"m must be at least 1, got {m}")
    chain = check_chain(chain)
    rows = m or LARGE_M
    apart = _apart_us(chain, gpu, rows)
    deferred = defer(_approximated(chain))
    middle, program = split_middle(deferred), split(deferred.links.last, whole_rows=True)
    considered = _Considered(chain, deferred, middle, split_further(deferred), program, target, rows, apart)
    return tuple(considered.shape(shape) for shape in CHAIN_SHAPES)


def _approximated(chain: ChainSpec) -> ChainSpec:
    """With faster activations; factors that one link leaves to the next are there."""
    links: list[FusedSpec] = []
    factor = 1.0
    for link in chain.links[:-1]:
        approximated_link, factor = approximate_handed_on(multiplied(link, factor))
        links.append(approximated_link)
    return ChainSpec((*links, approximate(multiplied(chain.last, factor))))


class _Considered:
    """What all shapes of one chain share."""

    def __init__(
        self,
        chain: ChainSpec,
        deferred: Deferred,
        middle: PhaseProgram,
        further: tuple[PhaseProgram, ...],
        program: PhaseProgram,
        gpu: gpus.Gpu,
        m: int,
        apart_us: float,
    ) -> None:
        self.chain, self.deferred = chain, deferred
        self.middle, self.further, self.program = middle, further, program
        self.gpu, self.m, self.apart_us = gpu, m, apart_us

    def shape(self, shape: ChainShape) -> ChainPlan | ChainRefusal:
        links = self.deferred.links  # as the kernel holds them
        needed = memory.needed_slots(self.middle, *self.further, self.program)
        fitted = memory.weights_and_slots(self.deferred, shape, needed, self.gpu.shared_bytes)
        candidate = constraints.Candidate(self.deferred, self.middle, self.program, shape, fitted, self.gpu)
        for check in constraints.SHAPE_CONSTRAINTS:
            if (reason := check(candidate)) is not None:
                return ChainRefusal(shape, check.__name__, *reason)
        assert fitted is not None
        weights, slots = fitted
        programs = self.middle, self.further, self.program
        rows_operand = operand_of_rows(links, (self.middle, *self.further), self.program, slots)
        repeated = cost.repeated(self.chain, rows_operand, self.m)
        floor = cost.floor_us(self.chain, self.gpu, self.m, repeated)
        predicted = cost.predict_us(self.chain, *programs, shape, weights, self.gpu, self.m, repeated)
        return ChainPlan(
            spec=self.chain,
            deferred=self.deferred,
            middle=self.middle,
            further=self.further,
            program=self.program,
            shape=shape,
            weights=weights,
            tile_slots=slots,
            rows_operand=rows_operand,
            tile_n=tile_columns(self.chain.last.n),
            shared_bytes=memory.shared_bytes(self.deferred, shape, weights, slots),
            registers=registers.held(links, self.middle, self.program, shape),
            decisions=(
                *(line for p in (self.middle, *self.further, self.program) for line in p.decisions),
                *_decisions(self.chain, self.deferred, self.m, rows_operand),
            ),
            gpu=self.gpu.name,
            predicted_us=max(floor, predicted),
            floor_us=floor,
            apart_us=self.apart_us,
        )


def _decisions(chain: ChainSpec, deferred: Deferred, m: int, rows_operand: int | None) -> tuple[str, ...]:
    first, *between, last = deferred.links.links
    said = [
        f"planned for M = {m}",
        f"{first.outputs[0].name} stays in registers, {BLOCK} of its {first.n} columns at a time, rounded to"
        f" {first.dtype.value}",
    ]
    said += [
        f"{link.outputs[0].name} stays in registers, all {link.n} columns, rounded to {link.dtype.value}"
        for link in between
    ]
    said += [line for link in deferred.links.links for line in approximated(link)]
    if len(first.outputs) > 1 or deferred.vectors:
        names = ", ".join(o.name for o in last.operands[len(chain.last.operands) :])
        said.append(f"behind the second GEMM, from reductions between them: {names}")
    if deferred.peak is not None:
        name = first.nodes[deferred.peak].name
        said.append(f"{name} is the largest so far: what was accumulated is scaled when it grows")
    if rows_operand is not None:
        name = last.operands[rows_operand].name
        said.append(f"{name}: where it is the first GEMM's A, read from the rows of that on chip")
    if any(node.op in REDUCTIONS and REDUCTIONS[node.op].axis == "row" for node in last.nodes):
        said.append("row reductions: one tile holds whole rows")
    return tuple(said)
