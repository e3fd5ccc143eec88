"""The cost model's predictions beside what was measured, of every row whose kernel can be planned again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from bench import attention, workloads
from bench.direct import spec_of
from bench.launch import SHAPES, forced_plan
from bench.page import changed
from bench.page.entries import unknown
from bench.page.families import families
from bench.page.files import ResultsFile
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import PlanError
from comfuse.generator.plan import KernelPlan, force, plan
from comfuse.generator.plan.chain import CHAIN_SHAPES, ChainPlan, force_chain, plan_chain
from comfuse.generator.spec import DType, FusedSpec
from comfuse.ops.resolver import m_class

_CHAIN_SHAPES = {shape.name: shape for shape in CHAIN_SHAPES}
_OWN, _CHAIN = "own-", "chain-"
#: Beside the results, or one folder up: by file and workload, the shape that its commit's planner chose.
PLANS = "plans.json"
GOAL = 0.15  # of the median error over everything


@dataclass(frozen=True)
class Point:
    """One provider of ours on one workload in one file.

    Attributes:
        kernel: its plan, for the ``m`` rows that were run.
        measured_us: median over processes.
        lines: of its rows in the file.
    """

    file: ResultsFile
    family: str
    workload: str
    provider: str
    kernel: KernelPlan | ChainPlan
    m: int
    measured_us: float
    lines: tuple[int, ...]

    @property
    def plan(self) -> str:
        """The kernel's shape, as :attr:`TileShape.name` or :attr:`ChainShape.name` has it."""
        return self.kernel.shape.name

    @property
    def schedule(self) -> str:
        return self.kernel.schedule if isinstance(self.kernel, KernelPlan) else "chain"

    @property
    def predicted_us(self) -> float:
        return self.kernel.predicted_us

    @property
    def error(self) -> float:
        """Predicted over measured, less one: negative where the kernel took longer than predicted."""
        return self.predicted_us / self.measured_us - 1


@dataclass(frozen=True)
class Error:
    """Of the points of one family and schedule.

    Attributes:
        median: of the errors without their signs.
        worst: the point that is farthest off.
    """

    family: str
    schedule: str
    points: int
    median: float
    worst: Point


def points(files: Iterable[ResultsFile]) -> list[Point]:
    """Every kernel of ours that was timed in one of the files, on a GPU that the planner knows.

    Predictions are this checkout's, for the tile shape that ran.  Of "comfuse" the row says which; where
    older rows do not, :data:`PLANS` beside the file does; where neither does, it is what would be chosen now.
    Left out is what :mod:`bench.page.changed` names.
    """
    found = []
    for file in files:
        if file.gpu is None:
            continue
        if file.experiment == "attention":
            found += _of_attention(file, file.gpu.name)
        elif file.experiment in families() and file.experiment != "models":
            # A time of a model is that of many kernels and more.
            found += _of_workloads(file, file.gpu.name)
    return found


def _of_workloads(file: ResultsFile, gpu: str) -> Iterator[Point]:
    gone, ran = set(unknown(file)), _ran(file.path)
    grouped: dict[tuple[str, str, str | None], list[tuple[int, float]]] = {}
    for line, row in file.rows:
        old = changed.reason(file.path.stem, row.workload)
        if row.us is not None and row.workload not in gone and old is None:
            key = (row.workload, row.provider, row.plan or ran.get(row.workload))
            grouped.setdefault(key, []).append((line, row.us))
    for (workload, provider, name), times in grouped.items():
        kernel = _plan(workload, provider, gpu, name)
        if kernel is not None:
            m, us = workloads.by_name(workload).m, median(us for _, us in times)
            lines = tuple(line for line, _ in times)
            yield Point(file, file.experiment, workload, provider, kernel, m, us, lines)


def _of_attention(file: ResultsFile, gpu: str) -> Iterator[Point]:
    """Of forced plans; what the op took is not said."""
    cases = {case.name: case for case in attention.CASES}
    for line, record in file.records:
        if record["record"] != "attention" or "us" not in record or record["case"] not in cases:
            continue
        case = cases[record["case"]]
        for kernel in attention.plans(case, gpu):
            if kernel.shape.name == record["provider"]:
                m = case.heads * case.length
                yield Point(file, "attention", case.name, kernel.shape.name, kernel, m, record["us"], (line,))


CHOSEN = "chosen by the planner"


def errors(found: Sequence[Point]) -> list[Error]:
    """By family and schedule; then of each family and of everything: of what the planner chooses, of all."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for p in found:
        schedules = [p.schedule, CHOSEN, "all"] if p.provider == "comfuse" else [p.schedule, "all"]
        for key in ((family, schedule) for schedule in schedules for family in (p.family, "all")):
            groups.setdefault(key, []).append(p)
    last = (CHOSEN, "all")
    order = sorted(groups, key=lambda key: (key[0] == "all", key[0], key[1] in last, key[1] == "all", key[1]))
    return [
        Error(
            *key,
            points=len(groups[key]),
            median=median(abs(p.error) for p in groups[key]),
            worst=max(groups[key], key=lambda p: abs(p.error)),
        )
        for key in order
    ]


@cache
def _spec(workload: str) -> FusedSpec | ChainSpec:
    return spec_of(workloads.by_name(workload))


@cache
def _plan(workload: str, provider: str, gpu: str, ran: str | None) -> KernelPlan | ChainPlan | None:
    """The plan behind a provider's time, predicted for the workload's own M; None: no kernel of ours.

    ``ran``: the name of the shape that ran as "comfuse", where that is known.
    """
    w = workloads.by_name(workload)
    try:
        if provider.startswith(_OWN):
            return forced_plan(catalog.linear(w.n, w.k, DType(w.dtype)), provider.removeprefix(_OWN), m=w.m)
        if provider != "comfuse" and provider.removeprefix(_CHAIN) not in {*SHAPES, *_CHAIN_SHAPES}:
            return None
        spec = _spec(workload)
        name = provider.removeprefix(_CHAIN) if provider != "comfuse" else ran
        if isinstance(spec, ChainSpec):
            shape = plan_chain(spec, gpu, m_class(w.m)).shape if name is None else _CHAIN_SHAPES[name]
            return force_chain(spec, shape, gpu, w.m)
        chosen = plan(spec, gpu, m_class(w.m)).shape if name is None else SHAPES[name]
        return force(spec, chosen, gpu, w.m)
    except (PlanError, KeyError):  # refused by this checkout's planner, or none of its shapes
        return None


def _ran(path: Path) -> dict[str, str]:
    """The tile shapes that ran as "comfuse" in a results file, by workload, as far as that is known."""
    for folder in (path.parent, path.parent.parent):
        if (folder / PLANS).is_file():
            known: dict[str, dict[str, str]] = json.loads((folder / PLANS).read_text())
            return known.get(path.name, {})
    return {}
