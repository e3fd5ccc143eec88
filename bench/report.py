"""Rows of one experiment: written as JSON lines, read back, summarised over processes, printed as a table."""

from __future__ import annotations

import contextlib
import datetime
import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

from bench import goals
from bench.environment import commit
from bench.goals import Goal, geomean
from bench.providers import BASELINES, PROVIDERS
from bench.workloads import Workload, by_name


@dataclass(frozen=True)
class Row:
    """One provider on one workload in one process, without a time if it failed or was refused.

    ``mhz``: the SMs' clock while it ran; ``plan``: the shape of our kernel, by name.
    """

    workload: str
    provider: str
    process: int
    us: float | None = None
    low: float | None = None
    high: float | None = None
    mhz: float | None = None
    error: float | None = None
    eager_error: float | None = None
    setup_seconds: float | None = None
    failure: str | None = None
    plan: str | None = None


class Results:
    """The results file of a running experiment, and the rows that went into it."""

    def __init__(self, folder: Path, head: dict[str, Any]) -> None:
        self.path = folder / file_name(head["experiment"])
        self.log = self.path.with_suffix(".log")
        self.rows: list[Row] = []
        write(self.path, [head])

    def add(self, new: dict[str, Any]) -> None:
        write(self.path, [new])
        self.rows += rows_of([new])

    @property
    def failed(self) -> bool:
        return any(r.failure for r in self.rows)


def file_name(experiment: str) -> str:
    """A name that sorts by date and says which commit was measured."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return f"{experiment}-{stamp}-{commit()[:8]}.jsonl"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """An end by Ctrl-C or by a time limit ends this block alone: what was measured is still reported."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        print("stopped early: the table has what was measured until here")
    finally:
        signal.signal(signal.SIGTERM, previous)


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the other records of a results file.

    Raises:
        ValueError: the file does not begin with a header.
    """
    (_, head), *rest = numbered(path)
    return head, [record for _, record in rest]


def numbered(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The records of a results file, each with the number of its line; the header first.

    Raises:
        ValueError: the file does not begin with a header.
    """
    lines = enumerate(path.read_text().splitlines(), start=1)
    records = [(number, json.loads(line)) for number, line in lines if line.strip()]
    if not records or records[0][1].get("record") != "header":
        raise ValueError(f"{path} is no results file: its first line is not a header")
    return records


def rows_of(records: Iterable[dict[str, Any]]) -> list[Row]:
    return [Row(**{k: v for k, v in r.items() if k != "record"}) for r in records if r["record"] == "row"]


def record(row: Row) -> dict[str, Any]:
    return {"record": "row", **asdict(row)}


@dataclass(frozen=True)
class Spread:
    """A figure over the processes: median, smallest, largest."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        if f"{self.low:.{digits}f}" == f"{self.high:.{digits}f}":
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}-{self.high:.{digits}f}]"


@dataclass(frozen=True)
class Summary:
    """One workload over all processes.  Ratios are taken within a process, then their median.

    ``speedup``: the faster Inductor of that process over ComFuse, of the processes that measured the mode
    which is the faster one over all (a slow one may run in the first process only); ``to_floor``: ComFuse
    over the floor.
    Providers without a time in any process are missing from ``us`` and ``to_mm``.
    """

    workload: Workload
    us: dict[str, Spread]
    to_mm: dict[str, Spread]
    speedup: Spread | None
    to_floor: Spread | None
    errors: dict[str, float]
    eager_error: float | None
    mhz: dict[str, float]


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One summary a workload, in the order in which the rows first name them."""
    names = list(dict.fromkeys(r.workload for r in rows))
    return [_summarise(by_name(n), [r for r in rows if r.workload == n]) for n in names]


def _summarise(workload: Workload, rows: list[Row]) -> Summary:
    times: dict[int, dict[str, float]] = {}
    for r in rows:
        if r.us is not None:
            times.setdefault(r.process, {})[r.provider] = r.us
    providers = list(dict.fromkeys(r.provider for r in rows))

    def over_processes(figure: Any) -> Spread | None:
        values = [v for v in (figure(t) for t in times.values()) if v is not None]
        return Spread.of(values) if values else None

    us = {p: over_processes(lambda t, p=p: t.get(p)) for p in providers}
    to_mm = {p: over_processes(lambda t, p=p: t[p] / t["mm"] if {p, "mm"} <= set(t) else None) for p in us}

    # By the ratio to mm: clocks differ from process to process.
    measured = {p: s.median for p in BASELINES if (s := to_mm.get(p)) is not None}
    fastest = min(measured, key=measured.__getitem__, default=None)

    def speedup(t: dict[str, float]) -> float | None:
        inductor = [t[p] for p in BASELINES if p in t]
        return min(inductor) / t["comfuse"] if fastest in t and "comfuse" in t else None

    errors: dict[str, float] = {}
    for r in rows:
        if r.error is not None:
            errors[r.provider] = max(r.error, errors.get(r.provider, 0.0))
    eager = [r.eager_error for r in rows if r.eager_error is not None]
    clocks = {p: [r.mhz for r in rows if r.provider == p and r.mhz is not None] for p in providers}
    return Summary(
        workload,
        us={p: s for p, s in us.items() if s},
        to_mm={p: s for p, s in to_mm.items() if s},
        speedup=over_processes(speedup),
        to_floor=over_processes(lambda t: t["comfuse"] / workload.floor_us if "comfuse" in t else None),
        errors=errors,
        eager_error=max(eager, default=None),
        mhz={p: median(found) for p, found in clocks.items() if found},
    )


def describe(head: dict[str, Any], rows: Sequence[Row]) -> str:
    """The heading of a table."""
    gpu = head.get("gpu") or {}
    processes = len({row.process for row in rows})
    over = f"; medians over {processes} processes [smallest-largest]" if processes else ""
    return (
        f"{head['experiment']} on {gpu.get('name', 'no GPU')}, driver {gpu.get('driver_version', '-')}, "
        f"torch {head['torch']}, CUTLASS {head['cutlass']}, commit {head['commit']}, {head['date']}{over}"
    )


def best_of(modes: Sequence[str]) -> str:
    """What ours is held against, from the titles of TorchInductor's modes that ran."""
    if not modes:
        return "Inductor, which did not run"
    return modes[0] if len(modes) == 1 else f"the best of {', '.join(modes)}"


def table(rows: Sequence[Row], tablefmt: str = "github") -> str:
    """The summary as a table, geometric means last, then what failed."""
    summaries = summarise(rows)
    providers = [p for p in PROVIDERS if any(p in s.us for s in summaries)]
    headers = [
        " or ".join(dict.fromkeys(s.workload.axes for s in summaries)),
        *(f"{PROVIDERS[p].title} us (/mm)" for p in providers),
    ]
    rivals = best_of([PROVIDERS[p].title for p in providers if p in BASELINES])
    headers += ["ComFuse/mm", "goal", f"vs {rivals}", "/floor", "error", "eager's", "MHz mm, ComFuse"]
    body = [_cells(s, providers) for s in summaries]
    body.append(_geomeans(summaries, providers))
    text = tabulate(body, headers, tablefmt=tablefmt, disable_numparse=True)
    failed = [r for r in rows if r.failure]
    failures = [f"failed: {r.workload} {r.provider} (process {r.process}): {r.failure}" for r in failed]
    return "\n".join([text, *failures])


def _cells(s: Summary, providers: list[str]) -> list[str]:
    def time(p: str) -> str:
        if p not in s.us:
            return "-"
        ratio = f" ({s.to_mm[p].median:.2f})" if p in s.to_mm and p != "mm" else ""
        return f"{s.us[p].median:.1f}{ratio}"

    w, ratio = s.workload, s.to_mm.get("comfuse")
    speedup = "-"
    if s.speedup is not None:
        speedup = f"{s.speedup.text()}x" + (" LOSS" if s.speedup.median < 1 else "")
    floor = f"{s.to_floor.text()} of {w.floor_us:.0f} us ({w.floor_bound})" if s.to_floor else "-"
    error = f"{s.errors['comfuse']:.1e}" if "comfuse" in s.errors else "-"
    eager = f"{s.eager_error:.1e}" if s.eager_error is not None else "-"
    ours = ratio.text() if ratio else "-"
    clocks = ", ".join(f"{s.mhz[p]:.0f}" if p in s.mhz else "-" for p in ("mm", "comfuse"))
    return [w.label, *map(time, providers), ours, _goal(s), speedup, floor, error, eager, clocks]


def goal_of(s: Summary) -> Goal | None:
    """The workload's goal beside what was measured; None where it has none."""
    target = s.workload.target
    if target is None:
        return None
    ratio = s.speedup if target.against == "inductor" else s.to_mm.get("comfuse")
    return Goal(target, None if ratio is None else ratio.median)


def _goal(s: Summary) -> str:
    goal = goal_of(s)
    return "-" if goal is None or goal.ratio is None else f"{goal.text} {goal.outcome}"


def _geomeans(summaries: list[Summary], providers: list[str]) -> list[str]:
    def mean(values: Iterable[Spread | None], unit: str = "") -> str:
        value = geomean(v.median for v in values if v is not None)
        return "-" if value is None else f"{value:.3f}{unit}"

    ratios = ["" if p == "mm" else f"({mean(s.to_mm.get(p) for s in summaries)})" for p in providers]
    comfuse = mean(s.to_mm.get("comfuse") for s in summaries)
    speedup = mean((s.speedup for s in summaries), "x")
    return [
        "geomean",
        *ratios,
        comfuse,
        _family_goals(summaries),
        speedup,
        mean(s.to_floor for s in summaries),
        "",
        "",
        "",
    ]


def _family_goals(summaries: list[Summary]) -> str:
    """The goals of the geometric means, of the families that have any."""
    speedups = {s.workload.name: s.speedup.median for s in summaries if s.speedup is not None}
    to_mm = {s.workload.name: s.to_mm["comfuse"].median for s in summaries if "comfuse" in s.to_mm}
    families = dict.fromkeys(s.workload.family for s in summaries)
    found = [goal for family in families for goal in goals.of_family(family, speedups, to_mm)]
    return ", ".join(f"{goal.text} {goal.outcome}" for goal in found)
