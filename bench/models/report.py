"""The table of a run over models."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tabulate import tabulate

from bench.goals import Goal, geomean
from bench.models.providers import PROVIDERS
from bench.report import Row, Spread, best_of
from bench.workloads.models import MODEL_WORKLOADS, ModelWorkload


def speedup(rows: Sequence[Row]) -> Spread | None:
    """The best Inductor over the best ComFuse of each process that measured both; rows of one workload."""
    ratios = []
    for process in {r.process for r in rows}:
        times = {r.provider: r.us for r in rows if r.process == process and r.us is not None}
        theirs = [t for name, t in times.items() if PROVIDERS[name].baseline]
        ours = [t for name, t in times.items() if PROVIDERS[name].ours]
        if theirs and ours:
            ratios.append(min(theirs) / min(ours))
    return Spread.of(ratios) if ratios else None


def table(rows: Sequence[Row], tablefmt: str = "github") -> str:
    """One line a workload, the geometric mean of the speedups, then what failed."""
    timed = {r.provider for r in rows if r.us is not None}
    names = [name for name in PROVIDERS if name in timed]
    measured = [w for w in MODEL_WORKLOADS if any(r.workload == w.name for r in rows)]
    body, ratios = [], []
    for w in measured:
        own = [r for r in rows if r.workload == w.name]
        ratio = speedup(own)
        if ratio is not None:
            ratios.append(ratio.median)
        body.append([w.name, *(_time(own, name) for name in names), *_outcome(w, ratio), *_errors(own)])
    mean = geomean(ratios)
    body.append(["geomean", *("" for _ in names), "-" if mean is None else f"{mean:.3f}x", "", "", ""])
    titles = [f"{PROVIDERS[name].title} us" for name in names]
    rivals = best_of([PROVIDERS[name].title for name in names if PROVIDERS[name].baseline])
    headers = ["step", *titles, f"vs {rivals}", "goal", "error", "eager's"]
    failed = [r for r in rows if r.failure]
    failures = [f"failed: {r.workload} {r.provider} (process {r.process}): {r.failure}" for r in failed]
    return "\n".join([tabulate(body, headers, tablefmt=tablefmt, disable_numparse=True), *failures])


def _time(rows: Sequence[Row], provider: str) -> str:
    times = [r.us for r in rows if r.provider == provider and r.us is not None]
    return f"{median(times):.1f}" if times else "-"


def _outcome(w: ModelWorkload, ratio: Spread | None) -> tuple[str, str]:
    """The speedup and the goal."""
    if ratio is None:
        return "-", w.target.text
    goal = Goal(w.target, ratio.median)
    return f"{ratio.text()}x" + (" LOSS" if ratio.median < 1 else ""), f"{goal.text} {goal.outcome}"


def _errors(rows: Sequence[Row]) -> tuple[str, str]:
    ours = [r.error for r in rows if r.error is not None and PROVIDERS[r.provider].ours]
    eager = [r.eager_error for r in rows if r.eager_error is not None]
    return tuple(f"{max(e):.1e}" if e else "-" for e in (ours, eager))  # type: ignore[return-value]
