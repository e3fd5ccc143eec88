"""The tables of the CPU's overhead: calls, and the steps from a source to a first launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.overhead import GOAL_CORES, GOAL_SECONDS, GOAL_STEPS, K, M, N
from bench.page import tables
from bench.page.files import ResultsFile
from bench.page.sections import Line, Link, anchor, source
from bench.page.tables import NONE, Cell, Table, cells

_YARDSTICK = "torch.mm(out=)"
_OURS = "comfuse"


def overhead(files: Sequence[ResultsFile], link: Link) -> list[Table]:
    """Calls and builds, each of the newest file that has any, then those of older files, folded."""
    made = []
    for kind, build in (("call", _calls), ("build", _builds)):
        having = [
            f for f in files if f.experiment == "overhead" and any(r["record"] == kind for _, r in f.records)
        ]
        made += [build(f, link, folded=i > 0) for i, f in enumerate(having)]
    return made


def slower(files: Sequence[ResultsFile], link: Link) -> list[Line]:
    """Lines for the table of losses: calls of ours that take longer than torch.mm's, in the newest file."""
    newest = next((f for f in files if _calls_of(f)), None)
    if newest is None:
        return []
    rows = []
    for line, r in _calls_of(newest):
        over = _over(newest, r)
        if over is not None and over > 1 and r["call"].startswith(_OURS):
            what = Cell(f"SLOWER to call than {_YARDSTICK}", "loss")
            key = f"short--{anchor(newest, 'call')}-{line}"
            cost = [tables.ratio(1 / over, "x"), tables.ratio(over)]
            rows.append((key, cells(["overhead", r["call"], what, *cost, source(newest, [line], link)])))
    return rows


def missed(files: Sequence[ResultsFile], link: Link) -> list[Line]:
    """Lines for the same table: builds that miss their goals, in the newest file that has any."""
    newest = next((f for f in files if _builds_of(f)), None)
    if newest is None:
        return []
    rows = []
    for line, r in _builds_of(newest):
        goal = _goal_of_build(r)
        if goal.mark == "missed":
            where = source(newest, [line], link)
            row = cells(["overhead", f"{r['state']} build", goal, NONE, NONE, where])
            rows.append((f"short--{anchor(newest, 'build')}-{line}", row))
    return rows


def _builds_of(file: ResultsFile) -> list[tuple[int, dict[str, Any]]]:
    if file.experiment != "overhead":
        return []
    return [(line, r) for line, r in file.records if r["record"] == "build"]


def _calls_of(file: ResultsFile) -> list[tuple[int, dict[str, Any]]]:
    if file.experiment != "overhead":
        return []
    return [(line, r) for line, r in file.records if r["record"] == "call"]


def _over(file: ResultsFile, call: dict[str, Any]) -> float | None:
    """A call's time over the yardstick's; None for that one, or where it was not timed."""
    yardstick = next((r["us"] for _, r in _calls_of(file) if r["call"] == _YARDSTICK), None)
    return None if yardstick is None or call["call"] == _YARDSTICK else call["us"] / yardstick


def _calls(file: ResultsFile, link: Link, *, folded: bool) -> Table:
    rows = []
    for line, r in sorted(_calls_of(file), key=lambda c: -c[1]["us"]):
        over = _over(file, r)
        share = Cell(tables.ratio(over))
        if over is not None and over > 1 and r["call"].startswith(_OURS):
            share = Cell(f"{share.text} SLOWER", "loss")
        spread = f"{tables.us(r['low'])}-{tables.us(r['high'])}"
        row = cells([r["call"], tables.us(r["us"]), spread, share, source(file, [line], link)])
        rows.append((f"{anchor(file, 'call')}-{line}", row))
    columns = (f"call, M,N,K = {M},{N},{K}", "us", "10-90 %", f"to {_YARDSTICK}", "rows")
    note = f"A call of ours does more than {_YARDSTICK}, whose product alone it is held against."
    return Table(
        f"overhead of a call: {file.path.name}", columns, tuple(rows), file.environment, note, folded
    )


def _goal_of_build(r: dict[str, Any]) -> Cell:
    """A build's goal and whether it is met; of those with all cores there is none."""
    if r["cores"] != GOAL_CORES or "steps" not in r:
        return NONE
    seconds = sum(r["steps"].get(step, 0.0) for step in GOAL_STEPS[r["state"]])
    goal = f"≤ {GOAL_SECONDS[r['state']]:g} s"
    if seconds > GOAL_SECONDS[r["state"]]:
        return Cell(f"MISSED goal {goal}: {seconds:.3f} s", "missed")
    return Cell(f"{goal} met", "met")


def _builds(file: ResultsFile, link: Link, *, folded: bool) -> Table:
    builds = _builds_of(file)
    steps = list(dict.fromkeys(step for _, r in builds for step in r.get("steps", {})))
    rows = []
    for line, r in builds:
        taken = r.get("steps", {})
        row: list[str | Cell] = [f"{r['state']}, {r['cores']} cores"]
        row += [f"{taken[s]:.3f}" if s in taken else "-" for s in steps]
        row.append(f"{sum(taken.values()):.3f}" if taken else "-")
        row.append(Cell(f"FAILED {r['failure']}", "failed") if "failure" in r else _goal_of_build(r))
        rows.append((f"{anchor(file, 'build')}-{line}", cells([*row, source(file, [line], link)])))
    columns = ("process", *(f"{s} s" for s in steps), "sum s", "goal", "rows")
    return Table(f"overhead of a build: {file.path.name}", columns, tuple(rows), file.environment, "", folded)
