"""What the report says of each experiment, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench import providers
from bench.goals import Goal, geomean
from bench.page import modes, tables
from bench.page.changed import CHANGED
from bench.page.entries import OWN, STOCK, Entry
from bench.page.families import Family, Measurement
from bench.page.files import ResultsFile, ranges
from bench.page.model import GOAL, Error, Point
from bench.page.tables import NONE, Cell, Table, cells
from bench.report import Spread

Link = Callable[[ResultsFile], str]  # where a file is, as seen from the page


@dataclass(frozen=True)
class Count:
    """Of a file's comparisons and goals, those of the whole family among them."""

    compared: int
    gains: int
    losses: int
    met: int
    missed: int
    failures: int

    @staticmethod
    def of(m: Measurement) -> Count:
        ratios = [e for e in m.entries if e.speedup is not None]
        each = [e.goal.met for e in m.entries if e.goal is not None]
        goals = [met for met in (*each, *(goal.met for goal in m.goals)) if met is not None]
        return Count(
            compared=len(ratios),
            gains=sum(not e.loss and not e.faster for e in ratios),
            losses=sum(e.loss or bool(e.faster) for e in ratios),
            met=sum(goals),
            missed=len(goals) - sum(goals),
            failures=sum(len(e.failures) for e in m.entries),
        )


def source(file: ResultsFile, lines: Sequence[int], link: Link) -> Cell:
    """The file and the lines that a number comes from."""
    text = file.path.name
    if lines:
        text += f" line{'s' if len(lines) > 1 else ''} {ranges(lines)}"
    return Cell(text, href=link(file))


def anchor(file: ResultsFile, name: str) -> str:
    return f"{file.path.stem}--{name}"


def overview(families: Sequence[Family], link: Link) -> Table:
    """One line a file that counts: gains beside losses, goals met beside missed."""
    columns = (
        "family", "compared", "geomean speed-up", "gains", "losses", "goals met", "goals missed",
        "failures", "to mm, geomean", "to floor, geomean", "against", "file",
    )  # fmt: skip
    rows = []
    for f in families:
        if not f.shown:
            row = cells([f.name, f"0 of {len(f.wanted)}", *["-"] * 9, "not measured"])
            rows.append((f"overview--{f.name}", row))
        rows += [(f"overview--{m.file.path.stem}", _totals(f, m, link)) for m in f.shown]
    note = (
        "A loss is a workload on which ComFuse is slower than what it is held against: the best of "
        "Inductor's modes that ran in the file, for plain_gemm the stock CUTLASS kernel layer. Speed-ups are "
        "that time over ComFuse's, taken within a process; ranges in brackets are over processes."
    )
    return Table("Overview", columns, tuple(rows), note=note)


def _totals(f: Family, m: Measurement, link: Link) -> tuple[Cell, ...]:
    count = Count.of(m)
    return cells(
        [
            f.name,
            f"{count.compared} of {len(f.wanted)}" + ("" if f.complete(m) else ", incomplete"),
            tables.ratio(_mean(e.speedup for e in m.entries), "x"),
            Cell(str(count.gains), "gain" if count.gains else ""),
            Cell(str(count.losses), "loss" if count.losses else ""),
            Cell(str(count.met), "met" if count.met else ""),
            Cell(str(count.missed), "missed" if count.missed else ""),
            Cell(str(count.failures), "failed" if count.failures else ""),
            tables.ratio(_mean(e.to_mm for e in m.entries)),
            tables.ratio(_mean(e.to_floor for e in m.entries)),
            modes.against(m),
            source(m.file, (), link),
        ]
    )


def _mean(values: Iterable[Spread | None]) -> float | None:
    return geomean(v.median for v in values if v is not None)


Line = tuple[str, tuple[Cell, ...]]  # its anchor and its cells


def shortfalls(families: Sequence[Family], link: Link, more: Sequence[Line] = ()) -> Table:
    """Every loss, missed goal and failure of the files that count, the worst first, then ``more``."""
    rows: list[tuple[float, str, tuple[Cell, ...]]] = []
    for f in families:
        for m in f.shown:
            for e in m.entries:
                where = source(m.file, e.lines, link)
                ratio = e.speedup.median if e.speedup is not None else float("inf")
                what = []
                if e.loss:
                    what.append(Cell(f"LOSS against {modes.against(m)}", "loss"))
                if e.goal is not None and e.goal.met is False:
                    what.append(_missed(e.goal))
                for name in e.faster:
                    title, time = providers.PROVIDERS[name].title, tables.us(e.us[name].median)
                    what.append(Cell(f"LOSS against {title}, {time} us", "loss"))
                what += [Cell(f"FAILED {text}", "failed") for text in e.failures]
                for i, cell in enumerate(what):
                    key = f"short--{anchor(m.file, e.workload)}--{i}"
                    line = [f.name, e.label, cell, _speedup(e), tables.spread(e.to_mm), where]
                    rows.append((ratio, key, cells(line)))
            for i, goal in enumerate(goal for goal in m.goals if goal.met is False):
                mean = _mean(e.speedup for e in m.entries)
                ratios = [tables.ratio(mean, "x"), tables.ratio(_mean(e.to_mm for e in m.entries))]
                line = [f.name, f"geomean of all {len(f.wanted)}", _missed(goal), *ratios]
                key = f"short--{anchor(m.file, 'geomean')}--{i}"
                row = cells([*line, source(m.file, (), link)])
                rows.append((float("inf") if mean is None else mean, key, row))
            for name in m.unknown:
                line = [f.name, name, Cell("not a workload any more", "failed"), NONE, NONE]
                key = f"short--{anchor(m.file, name)}"
                rows.append((float("inf"), key, cells([*line, source(m.file, (), link)])))
    rows.sort(key=lambda row: row[0])
    columns = ("family", "workload", "what", "speed-up", "to mm", "rows")
    return Table(
        "Losses, missed goals, failures",
        columns,
        (*((key, line) for _, key, line in rows), *more),
        note="" if rows or more else "None in the files that count.",
    )


def _missed(goal: Goal) -> Cell:
    """``MISSED goal ≥ 1.12x``, and by how little where it was by a hair."""
    return Cell(f"MISSED goal {goal.text}{goal.outcome.removeprefix('MISSED')}", "missed")


def _speedup(e: Entry) -> Cell:
    if e.speedup is None:
        return NONE
    text = tables.spread(e.speedup, "x")
    return Cell(f"{text} LOSS", "loss") if e.loss else Cell(text, "gain")


def measurement(f: Family, m: Measurement, link: Link, *, folded: bool = False) -> Table:
    """One file: a line a workload, slowest ratio first, geometric means last."""
    titles, columns = _columns(f, m)
    common = (
        "to mm", "to floor", f"against {modes.against(m)}", "goal", "processes", "spread between processes",
        "10-90 % within", "error", "eager's", "rows",
    )  # fmt: skip
    rows = []
    for e in m.entries:
        line = [
            e.label,
            *(column(e) for column in columns),
            tables.spread(e.to_mm),
            tables.spread(e.to_floor),
        ]
        line += [_speedup(e), _goal(e), str(e.processes), _between(e), tables.percent(e.within)]
        line += [_error(e.error), _error(e.eager_error), source(m.file, e.lines, link)]
        rows.append((anchor(m.file, e.workload), cells(line)))
    means = ["geomean", *("" for _ in columns)]
    means += [
        tables.ratio(_mean(e.to_mm for e in m.entries)),
        tables.ratio(_mean(e.to_floor for e in m.entries)),
    ]
    means += [tables.ratio(_mean(e.speedup for e in m.entries), "x"), _goals(m), *("" for _ in range(5))]
    rows.append((anchor(m.file, "geomean"), cells([*means, source(m.file, (), link)])))
    notes = []
    if baselines := modes.note(m):
        notes.append(baselines)
    if not f.complete(m):
        lacking = [n for n in f.wanted if n not in m.compared]
        notes.append(f"Incomplete: no comparison for {', '.join(lacking)}.")
    if m.unknown:
        notes.append(f"Not workloads any more: {', '.join(m.unknown)}.")
    notes += [f"FAILED: {e.workload} {text}." for e in m.entries for text in e.failures]
    title = f"{f.name}: {m.file.path.name}"
    return Table(
        title, ("workload", *titles, *common), tuple(rows), m.file.environment, " ".join(notes), folded
    )


Column = Callable[[Entry], "str | Cell"]


def _columns(f: Family, m: Measurement) -> tuple[list[str], list[Column]]:
    """Times: of each provider, or of the fastest variant of each layer."""
    if f.name == "plain_gemm":
        return ["cuBLAS mm us", "stock us", "ours us"], [_time("mm"), _fastest(STOCK), _fastest(OWN)]
    known = modes.known(f.name)
    timed = {name for e in m.entries for name in e.us}
    names = [n for n in known if n in timed] + sorted(timed - set(known))
    titles = [f"{known[n].title if n in known else n} us" for n in names]
    return titles, [_time(n) for n in names]


def _time(name: str) -> Column:
    return lambda e: tables.us(e.us[name].median) if name in e.us else NONE


def _fastest(names: Sequence[str]) -> Column:
    def column(e: Entry) -> str | Cell:
        timed = [n for n in names if n in e.us]
        if not timed:
            return NONE
        best = min(timed, key=lambda n: e.us[n].median)
        return f"{tables.us(e.us[best].median)} ({best.split('-', 1)[-1]})"

    return column


def _goal(e: Entry) -> Cell:
    if e.goal is None:
        return NONE
    mark = {True: "met", False: "missed", None: ""}[e.goal.met]
    return Cell(f"{e.goal.text} {e.goal.outcome}", mark)


def _goals(m: Measurement) -> Cell:
    """Those of the geometric means."""
    mark = "missed" if any(goal.met is False for goal in m.goals) else ""
    return Cell(", ".join(f"{goal.text} {goal.outcome}" for goal in m.goals), mark)


def _between(e: Entry) -> str:
    """How far ours is apart in the processes, over its median."""
    us: Spread | None = e.ours_us
    if us is None or e.processes < 2:
        return "-"
    return tables.percent((us.high - us.low) / us.median)


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def history(f: Family, link: Link) -> Table:
    """One line a file, newest first."""
    columns = (
        "date", "commit", "compared", "geomean speed-up", "gains", "losses", "goals met", "goals missed",
        "failures", "to mm, geomean", "to floor, geomean", "against", "file",
    )  # fmt: skip
    rows = []
    for m in f.history:
        line = _totals(f, m, link)
        head = cells([str(m.file.head.get("date", "-")), str(m.file.head.get("commit", "-"))])
        rows.append((f"history--{m.file.path.stem}", (*head, *line[1:])))
    return Table(f"{f.name}: history", columns, tuple(rows))


def others(files: Sequence[ResultsFile], link: Link) -> Table:
    """Files of experiments that this report has no table for."""
    rows = tuple(
        (f"other--{f.path.stem}", cells([f.experiment, f.environment, source(f, (), link)])) for f in files
    )
    note = (
        "This report knows no table for them: `python -m bench report` reads what `python -m bench` writes."
    )
    return Table("Files without a table", ("experiment", "environment", "file"), rows, note=note)


def model_errors(errors: Sequence[Error], link: Link) -> Table:
    """How far the cost model is off, by family and schedule."""
    rows = []
    for e in errors:
        w = e.worst
        line = [e.family, e.schedule, str(e.points), tables.percent(e.median)]
        line += [tables.percent(w.error, signed=True), f"{w.workload}, {w.plan}"]
        rows.append((f"error--{e.family}--{e.schedule}", cells([*line, source(w.file, w.lines, link)])))
    columns = ("family", "schedule", "points", "median error", "worst error", "worst on", "rows")
    note = (
        "An error is predicted over measured time, less one: negative where the kernel took longer. "
        "Predictions are of this checkout's planner, for the tile shape that ran. The model's constants were "
        "fitted to these rows."
    )
    if errors:
        outcome = "MISSED" if errors[-1].median > GOAL else "met"
        note += f" Its goal, a median of at most {tables.percent(GOAL)} over all of them, is {outcome}."
    return Table("Cost model: errors", columns, tuple(rows), note=note)


def model_points(points: Sequence[Point], link: Link) -> Table:
    """Every prediction beside its time, the farthest off first."""
    rows = []
    for p in sorted(points, key=lambda p: -abs(p.error)):
        line = [p.family, p.workload, p.provider, p.plan, tables.us(p.predicted_us), tables.us(p.measured_us)]
        key = f"model--{anchor(p.file, p.workload)}--{p.provider}"
        row = cells([*line, tables.percent(p.error, signed=True), source(p.file, p.lines, link)])
        rows.append((key, row))
    columns = ("family", "workload", "provider", "plan", "predicted us", "measured us", "error", "rows")
    left_out = "; ".join(f"{', '.join(c.workloads)} of {', '.join(c.files)} ({c.reason})" for c in CHANGED)
    note = f"Without times of kernels that have changed since: {left_out}."
    return Table("Cost model: every point", columns, tuple(rows), note=note, folded=True)
