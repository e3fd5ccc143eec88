"""What one file says of one workload: times, ratios, goal, and the lines that it stands in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import models, plain_gemm, providers, report, workloads
from bench.goals import Goal
from bench.models import providers as model_providers
from bench.models import report as models_report
from bench.page.files import ResultsFile
from bench.report import Row, Spread
from bench.workloads import Workload
from bench.workloads.models import MODEL_WORKLOADS

STOCK = tuple(p.name for p in providers.STOCK)
OWN = tuple(p.name for p in providers.OWN)
RIVALS = tuple(p.name for p in providers.PROVIDERS.values() if p.rival)


@dataclass(frozen=True)
class Entry:
    """One workload in one file; times in microseconds, each a median over processes with its extremes.

    Attributes:
        workload: its name.
        label: for people.
        us: by provider, of those that have a time.
        ours: the provider of ours whose time counts, None if none has one.
        speedup: the best baseline over ours, ratios taken within a process.
        to_mm: ours over torch.mm alone.
        to_floor: ours over the floor, None where there is no floor.
        within: of ours, the widest span of a process between the 10 % and the 90 % quantile, over its median.
        error: of ours against float64; ``eager_error``: of eager.
        faster: rivals with other libraries whose median is below ours.
        lines: of all rows of the workload.
    """

    workload: str
    label: str
    us: dict[str, Spread]
    ours: str | None
    speedup: Spread | None
    to_mm: Spread | None
    to_floor: Spread | None
    goal: Goal | None
    within: float | None
    error: float | None
    eager_error: float | None
    processes: int
    faster: tuple[str, ...]
    failures: tuple[str, ...]
    lines: tuple[int, ...]

    @property
    def loss(self) -> bool:
        """Whether ours was slower than the best baseline."""
        return self.speedup is not None and self.speedup.median < 1

    @property
    def ours_us(self) -> Spread | None:
        return self.us[self.ours] if self.ours is not None else None


def gemm_bytes(w: Workload) -> float:
    """Bytes of its products with nothing behind them: every tensor once, 16-bit values."""
    return 2.0 * (w.m * w.k + w.products * (w.n * w.k + w.m * w.n))


def entries_of(file: ResultsFile) -> list[Entry]:
    """Every workload of a file that has rows, slowest ratio first, those without a ratio last.

    A workload that the bench no longer has is left out: :func:`unknown` names it.
    """
    of = {"models": _of_model, "plain_gemm": _of_plain_gemm}.get(file.experiment, _of_workload)
    known = _names(file)
    grouped: dict[str, list[tuple[int, Row]]] = {}
    for line, row in file.rows:
        if row.workload in known:
            grouped.setdefault(row.workload, []).append((line, row))
    return sorted((of(name, rows) for name, rows in grouped.items()), key=_rank)


def unknown(file: ResultsFile) -> list[str]:
    """Workloads of a file that the bench no longer has."""
    known = _names(file)
    return list(dict.fromkeys(row.workload for _, row in file.rows if row.workload not in known))


def _names(file: ResultsFile) -> set[str]:
    if file.experiment == "models":
        return {w.name for w in MODEL_WORKLOADS}
    return {w.name for family in workloads.FAMILIES.values() for w in family}


def _rank(e: Entry) -> tuple[bool, float]:
    if e.speedup is not None:
        return False, e.speedup.median
    return True, -e.to_mm.median if e.to_mm is not None else 0.0


def _of_workload(name: str, numbered: Sequence[tuple[int, Row]]) -> Entry:
    rows = [row for _, row in numbered]
    (s,) = report.summarise(rows)
    w = s.workload
    label = w.label if w.label.startswith(w.model) else f"{w.model} {w.label}"
    return _entry(
        numbered,
        label,
        s.us,
        "comfuse" if "comfuse" in s.us else None,
        speedup=s.speedup,
        to_mm=s.to_mm.get("comfuse"),
        to_floor=s.to_floor,
        goal=report.goal_of(s),
    )


def _of_model(name: str, numbered: Sequence[tuple[int, Row]]) -> Entry:
    (w,) = (w for w in MODEL_WORKLOADS if w.name == name)
    ratio = models_report.speedup([row for _, row in numbered])
    us = _medians(numbered)
    goal = Goal(w.target, None if ratio is None else ratio.median)
    ours = [n for n, p in model_providers.PROVIDERS.items() if p.ours]
    label = f"{models.MODELS[w.model].title}, {'training' if w.training else 'inference'}"
    return _entry(numbered, label, us, _fastest(us, ours), speedup=ratio, goal=goal)


def _of_plain_gemm(name: str, numbered: Sequence[tuple[int, Row]]) -> Entry:
    """Ours against the stock kernel layer, the faster variant of each."""
    w, us = workloads.by_name(name), _medians(numbered)
    floor = 1e6 * max(
        w.flops / workloads.base.GEMM_FLOPS_PER_SECOND, gemm_bytes(w) / workloads.base.COPY_BYTES_PER_SECOND
    )
    speeds, to_mm, to_floor = [], [], []
    for process in dict.fromkeys(row.process for _, row in numbered):
        times = {row.provider: row.us for _, row in numbered if row.process == process and row.us is not None}
        own = min((t for p, t in times.items() if p in OWN), default=None)
        stock = min((t for p, t in times.items() if p in STOCK), default=None)
        if own is None:
            continue
        to_floor.append(own / floor)
        if stock is not None:
            speeds.append(stock / own)
        if "mm" in times:
            to_mm.append(own / times["mm"])
    speed = _spread(speeds)
    return _entry(
        numbered,
        f"{w.m},{w.n},{w.k}",
        us,
        _fastest(us, OWN),
        speedup=speed,
        to_mm=_spread(to_mm),
        to_floor=_spread(to_floor),
        goal=Goal(plain_gemm.TARGET, None if speed is None else speed.median),
    )


def _entry(
    numbered: Sequence[tuple[int, Row]],
    label: str,
    us: dict[str, Spread],
    ours: str | None,
    *,
    speedup: Spread | None = None,
    to_mm: Spread | None = None,
    to_floor: Spread | None = None,
    goal: Goal | None = None,
) -> Entry:
    rows = [row for _, row in numbered]
    own = [r for r in rows if r.provider == ours and r.us is not None]
    spans = [(r.high - r.low) / r.us for r in own if r.us and r.low is not None and r.high is not None]
    errors = [r.error for r in own if r.error is not None]
    return Entry(
        workload=rows[0].workload,
        label=label,
        us=us,
        ours=ours,
        speedup=speedup,
        to_mm=to_mm,
        to_floor=to_floor,
        goal=goal,
        within=max(spans, default=None),
        error=max(errors, default=None),
        eager_error=max((r.eager_error for r in rows if r.eager_error is not None), default=None),
        processes=len({r.process for r in rows if r.us is not None}),
        faster=tuple(n for n in RIVALS if n in us and ours in us and us[n].median < us[ours].median),
        failures=tuple(f"{r.provider} (process {r.process}): {r.failure}" for r in rows if r.failure),
        lines=tuple(line for line, _ in numbered),
    )


def _medians(numbered: Sequence[tuple[int, Row]]) -> dict[str, Spread]:
    times: dict[str, list[float]] = {}
    for _, row in numbered:
        if row.us is not None:
            times.setdefault(row.provider, []).append(row.us)
    return {provider: Spread.of(values) for provider, values in times.items()}


def _fastest(us: dict[str, Spread], names: Sequence[str]) -> str | None:
    return min((n for n in names if n in us), key=lambda n: us[n].median, default=None)


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread.of(values) if values else None
