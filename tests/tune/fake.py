"""A GPU that knows its answers: kernels are the float32 reference, times are drawn."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from comfuse.errors import WrongResultError
from comfuse.generator.plan import KernelPlan
from comfuse.reference import evaluate
from comfuse.tune.problem import Checked, Launch, Problem
from comfuse.tune.runner import Contender, Failure


@dataclass
class FakeGpu:
    """``us``: what a plan takes, by its label; what is predicted for it if not given.

    ``noise``: relative, of each time; the clocks sink by a tenth and rise again on top.  ``spoil``: plans
    whose results are changed, by their labels; ``spoil_later``: once they were timed.
    """

    us: Mapping[str, float] = field(default_factory=dict)
    spoil: Mapping[str, Callable[[Tensor], object]] = field(default_factory=dict)
    spoil_later: Mapping[str, Callable[[Tensor], object]] = field(default_factory=dict)
    noise: float = 0.004
    seed: int = 0
    gpu: str = "h200"
    name: str = "a fake"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    device_code: str = "none"
    made_with: dict[str, str] = field(default_factory=lambda: {"comfuse": "test"})
    built: list[str] = field(default_factory=list)
    timed: Counter[str] = field(default_factory=Counter)
    checked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def build(self, plans: Sequence[KernelPlan]) -> None:
        self.built += [plan.label for plan in plans]

    def prepare(self, problem: Problem, plan: KernelPlan) -> Contender | Failure:
        try:
            checked = problem.check(launch(problem, self.spoil.get(plan.label)))
        except WrongResultError as e:
            return Failure(plan, str(e), wrong=True)
        self.checked.append(plan.label)
        us = self.us.get(plan.label, plan.predicted_us)
        return Contender(
            plan, checked, lambda: self._time(plan.label, us), lambda: self._again(problem, plan)
        )

    def _again(self, problem: Problem, plan: KernelPlan) -> Checked:
        spoil = self.spoil.get(plan.label) or self.spoil_later.get(plan.label)
        return problem.check(launch(problem, spoil))

    def _time(self, label: str, us: float) -> float:
        drift = 1 + 0.05 * math.sin(sum(self.timed.values()) / 40)
        self.timed[label] += 1
        return us * drift * (1 + abs(self._random.gauss(0, self.noise)))


def launch(problem: Problem, spoil: Callable[[Tensor], object] | None = None) -> Launch:
    """What a kernel would do, on a CPU; ``spoil`` then changes the first output."""

    def call(outputs: Sequence[Tensor]) -> None:
        p = problem
        for output, y in zip(outputs, evaluate(p.spec, p.a, p.b, p.operands, p.scalars), strict=True):
            output.copy_(y)
        if spoil is not None:
            spoil(outputs[0])

    return call
