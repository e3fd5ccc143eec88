"""From a program to the plan that is fastest on this GPU, and what it was held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from comfuse import calibration
from comfuse.errors import TuneError, WrongResultError
from comfuse.generator.plan import KernelPlan
from comfuse.generator.spec import FusedSpec
from comfuse.library.signature import signature
from comfuse.library.tuned.table import Entry, Timed
from comfuse.ops.programs import Program
from comfuse.tune.candidates import KEEP_WITHIN, Candidates, candidates
from comfuse.tune.problem import Problem
from comfuse.tune.race import LOOKS, Race, race
from comfuse.tune.runner import Contender, Failure, Runner


@dataclass(frozen=True)
class Target:
    """A program at one size.

    Attributes:
        label: how people call it.
        spec: what is computed.
        lead: A's sizes before its last: (M,), of a batched program (batch, M).
    """

    label: str
    spec: FusedSpec
    lead: tuple[int, ...]

    @property
    def m(self) -> int:
        """The number of rows that kernels are chosen by."""
        return Program.of(self.spec).rows(torch.Size(self.lead))

    def candidates(self, gpu: str, *, exhaustive: bool = False) -> Candidates:
        """Its plans.  Raises SpecError, PlanError: there is none."""
        return candidates(self.spec, calibration.gpu(gpu), self.m, math.inf if exhaustive else KEEP_WITHIN)


@dataclass(frozen=True)
class Outcome:
    """What came of a target.

    Attributes:
        entry: the choice, for a table.
        candidates: what was considered.
        race: the times, by the labels of the plans.
        failures: the plans that were not timed.
    """

    entry: Entry
    candidates: Candidates
    race: Race
    failures: tuple[Failure, ...]

    @property
    def wrong(self) -> tuple[Failure, ...]:
        """The plans whose results were not right."""
        return tuple(failure for failure in self.failures if failure.wrong)


def tune(
    target: Target, runner: Runner, *, exhaustive: bool = False, looks: Sequence[int] = LOOKS
) -> Outcome:
    """Checks and times a target's plans.

    Args:
        runner: what runs them.
        exhaustive: time all plans of the planner, all rounds.
        looks: as for :func:`comfuse.tune.race.race`.

    Raises:
        SpecError, PlanError: no kernel can run it.
        TuneError: not one plan could be built and gave right results; has every reason.
        LaunchError: a kernel ended this process's use of the GPU.
    """
    considered = target.candidates(runner.gpu, exhaustive=exhaustive)
    runner.build(considered.kept)
    problem = Problem.of(target.spec, target.lead, runner.device)
    prepared = [runner.prepare(problem, plan) for plan in considered.kept]
    contenders = {p.plan.label: p for p in prepared if isinstance(p, Contender)}
    failures = [p for p in prepared if isinstance(p, Failure)]
    while contenders:
        run = race({label: c.time for label, c in contenders.items()}, looks, eliminate=not exhaustive)
        best = contenders[run.winner]
        try:
            best.check()  # what it left behind in hundreds of launches may have spoilt it
            break
        except WrongResultError as e:
            failures.append(Failure(best.plan, f"after it was timed: {e}", wrong=True))
            del contenders[run.winner]
    else:
        raise TuneError(target.label, "; ".join(f"{f.plan.label}: {f.reason}" for f in failures))
    timed = [_timed(contenders[label].plan, run) for label in run.order]
    entry = Entry(
        signature=signature(target.spec),
        gpu=runner.gpu,
        rows=considered.rows,
        label=target.label,
        spec=target.spec.text(),
        m=target.m,
        best=timed[0],
        second=timed[1] if len(timed) > 1 else None,
        error=best.checked.error,
        allowed=best.checked.allowed,
        candidates=len(contenders),
        rounds=len(run.samples[run.winner]),
        exhaustive=exhaustive,
        device=runner.name,
        device_code=runner.device_code,
        made_with=runner.made_with,
    )
    return Outcome(entry, considered, run, tuple(failures))


def _timed(plan: KernelPlan, run: Race) -> Timed:
    return Timed(plan.shape.name, plan.stages, round(run.us(plan.label), 3))
