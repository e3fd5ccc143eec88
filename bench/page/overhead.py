"""The tables of the CPU's overhead: calls, and the steps from a source to a first launch."""

from __future__ import annotations

from collections.abc import Sequence

from bench.overhead import K, M, N
from bench.page import tables
from bench.page.files import ResultsFile
from bench.page.sections import Link, anchor, source
from bench.page.tables import NONE, Cell, Table, cells

_YARDSTICK = "torch.mm(out=)"


def overhead(files: Sequence[ResultsFile], link: Link) -> list[Table]:
    """Calls and builds, each of the newest file that has any, then those of older files, folded."""
    made = []
    for kind, build in (("call", _calls), ("build", _builds)):
        having = [
            f for f in files if f.experiment == "overhead" and any(r["record"] == kind for _, r in f.records)
        ]
        made += [build(f, link, folded=i > 0) for i, f in enumerate(having)]
    return made


def _calls(file: ResultsFile, link: Link, *, folded: bool) -> Table:
    calls = [(line, r) for line, r in file.records if r["record"] == "call"]
    yardstick = next((r["us"] for _, r in calls if r["call"] == _YARDSTICK), None)
    rows = []
    for line, r in sorted(calls, key=lambda c: -c[1]["us"]):
        share: str | Cell = NONE
        if yardstick is not None and r["call"] != _YARDSTICK:
            over = r["us"] / yardstick
            slower = over > 1 and r["call"].startswith("comfuse")
            text = tables.ratio(over)
            share = Cell(f"{text} SLOWER", "loss") if slower else Cell(text)
        spread = f"{tables.us(r['low'])}-{tables.us(r['high'])}"
        row = cells([r["call"], tables.us(r["us"]), spread, share, source(file, [line], link)])
        rows.append((f"{anchor(file, 'call')}-{line}", row))
    columns = (f"call, M,N,K = {M},{N},{K}", "us", "10-90 %", f"to {_YARDSTICK}", "rows")
    note = f"A call of ours does more than {_YARDSTICK}, whose product alone it is held against."
    return Table(
        f"overhead of a call: {file.path.name}", columns, tuple(rows), file.environment, note, folded
    )


def _builds(file: ResultsFile, link: Link, *, folded: bool) -> Table:
    builds = [(line, r) for line, r in file.records if r["record"] == "build"]
    steps = list(dict.fromkeys(step for _, r in builds for step in r.get("steps", {})))
    rows = []
    for line, r in builds:
        taken = r.get("steps", {})
        row: list[str | Cell] = [f"{r['state']}, {r['cores']} cores"]
        row += [f"{taken[s]:.3f}" if s in taken else "-" for s in steps]
        row.append(f"{sum(taken.values()):.3f}" if taken else "-")
        row.append(Cell(f"FAILED {r['failure']}", "failed") if "failure" in r else NONE)
        rows.append((f"{anchor(file, 'build')}-{line}", cells([*row, source(file, [line], link)])))
    columns = ("process", *(f"{s} s" for s in steps), "sum s", "failure", "rows")
    return Table(f"overhead of a build: {file.path.name}", columns, tuple(rows), file.environment, "", folded)
