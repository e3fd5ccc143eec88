"""Goals beside what was measured: of one workload, and of the geometric mean over a whole family."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench import workloads
from bench.workloads import Target


@dataclass(frozen=True)
class Goal:
    """``ratio``: what was reached, None where what it needs was not measured."""

    target: Target
    ratio: float | None

    @property
    def text(self) -> str:
        return self.target.text

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        return None if self.ratio is None else self.target.met(self.ratio)

    @property
    def outcome(self) -> str:
        """In words; with as many digits as tell the ratio from the goal."""
        if self.ratio is None:
            return "not measured"
        reached = "met" if self.met else "MISSED"
        if f"{self.ratio:.2f}" == f"{self.target.value:.2f}":
            return f"{reached} by a hair, {self.ratio:.3f}"
        return reached


def of_family(family: str, speedups: Mapping[str, float], to_mm: Mapping[str, float]) -> tuple[Goal, ...]:
    """The goals of a whole family, each with the geometric mean of its ratios.

    Args:
        family: its name; most have no such goals.
        speedups, to_mm: of each workload that has one, the best Inductor over ours, and ours over torch.mm.
            A mean over a part of the family is none of the family.
    """
    found = []
    for target in workloads.TARGETS.get(family, ()):
        ratios = speedups if target.against == "inductor" else to_mm
        names = [w.name for w in workloads.FAMILIES[family]]
        mean = geomean(ratios[n] for n in names) if set(names) <= set(ratios) else None
        found.append(Goal(target, mean))
    return tuple(found)


def geomean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
