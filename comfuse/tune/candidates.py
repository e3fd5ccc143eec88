"""The plans that are worth timing: the planner's, those that the cost model rules out left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from comfuse.generator import plan as planner
from comfuse.generator.plan import Gpu, KernelPlan, Refusal
from comfuse.generator.spec import FusedSpec
from comfuse.library.rows import classes_on, m_class

#: How much longer than the fastest a plan may be predicted to take, and still be timed.  Of plans that were
#: timed side by side, the best was predicted at most 2 % above the fastest (bench/NOTES.md, section 11); the
#: rest is a margin for programs that were not.
KEEP_WITHIN = 1.2


@dataclass(frozen=True)
class Candidates:
    """The planner's plans of one program for a class of numbers of rows.

    Attributes:
        rows: the class, by its upper bound; None: many.  Every plan serves all of it.
        kept: the plans to time, those first that are predicted to be faster.
        pruned: those that are predicted to take too long.
        refused: tile shapes that cannot run the program.
        by_model: the label of the plan that the cost model chooses; it is always kept.
    """

    rows: int | None
    kept: tuple[KernelPlan, ...]
    pruned: tuple[KernelPlan, ...]
    refused: tuple[Refusal, ...]
    by_model: str


def candidates(spec: FusedSpec, gpu: str | Gpu, m: int, within: float = KEEP_WITHIN) -> Candidates:
    """The plans of a program for the class of ``m`` rows.

    What is searched is schedule, tile, cluster, and how shared memory is divided into stages for A and B and
    slots for tile operands.  The order in which a kernel takes its tiles and the size of its grid are decided
    by the launcher, as functions of M: no kernel has them as parameters.

    Args:
        gpu: as for :func:`comfuse.generator.plan.plan`.
        m: the number of rows that will be timed; times are predicted for it.
        within: plans that are predicted to take longer by more than this factor than the fastest of those
            that the cost model knows are pruned, and so are those whose stages are more than one step from
            the planner's; infinite: none is.

    Raises:
        SpecError, PlanError: no plan serves the whole class.
    """
    rows = m_class(m, classes_on(spec, gpu))
    by_model = planner.plan(spec, gpu, rows)
    found = _considered(spec, gpu, rows)
    predicted = {c.shape: c for c in _considered(spec, gpu, m) if isinstance(c, KernelPlan)}
    plans = [
        replace(c, predicted_us=predicted[c.shape].predicted_us, floor_us=predicted[c.shape].floor_us)
        for c in found
        if isinstance(c, KernelPlan)
    ]
    plans.sort(key=lambda p: p.predicted_us)
    modelled = planner.shapes(by_model.spec)
    limit = within * next(p.predicted_us for p in plans if p.shape in modelled)
    near = [p for p in plans if p.predicted_us <= limit or p.shape == by_model.shape]
    kept = [q for p in near for q in _pipelines(p, every=math.isinf(within))]
    return Candidates(
        rows=rows,
        kept=tuple(kept),
        pruned=tuple(q for p in plans for q in planner.pipelines(p) if q not in kept),
        refused=tuple(c for c in found if isinstance(c, Refusal)),
        by_model=by_model.label,
    )


def _considered(spec: FusedSpec, gpu: str | Gpu, m: int | None) -> tuple[KernelPlan | Refusal, ...]:
    """With the tile shapes that only a measurement chooses."""
    return (*planner.candidates(spec, gpu, m), *planner.candidates_to_measure(spec, gpu, m))


def _pipelines(plan: KernelPlan, *, every: bool) -> tuple[KernelPlan, ...]:
    """The plan and its neighbours in the number of stages, or with every number of them."""
    found = planner.pipelines(plan)
    place = found.index(plan)
    return found if every else found[max(0, place - 1) : place + 2]
