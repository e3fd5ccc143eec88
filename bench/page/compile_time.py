"""The tables of build times, each kernel beside its goal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.compile_sources import goal_seconds
from bench.compile_time import is_slow
from bench.page.files import ResultsFile
from bench.page.sections import Line, Link, anchor, source
from bench.page.tables import Cell, Table, cells

EXPERIMENT = "compile_time"


def compile_time(files: Sequence[ResultsFile], link: Link) -> list[Table]:
    """One table a file, the slowest kernel first."""
    return [_table(file, link) for file in files if file.experiment == EXPERIMENT]


def missed(files: Sequence[ResultsFile], link: Link) -> list[Line]:
    """Lines for the table of missed goals, of all files: each has kernels of its own."""
    rows = []
    for file in (f for f in files if f.experiment == EXPERIMENT):
        for line, row in _builds(file):
            if "failure" in row or is_slow(row):
                key = f"short--{anchor(file, 'build')}-{line}"
                what = ["compile time", f"{row['family']}: {row['kernel']}", _outcome(row), "-", "-"]
                rows.append((key, cells([*what, source(file, [line], link)])))
    return rows


def _builds(file: ResultsFile) -> list[tuple[int, dict[str, Any]]]:
    return [(line, r) for line, r in file.records if r["record"] == "build"]


def _outcome(row: dict[str, Any]) -> Cell:
    if "failure" in row:
        return Cell(f"FAILED {row['failure']}", "failed")
    goal = f"≤ {goal_seconds(row['kernel']):g} s"
    took = f"{row['seconds']:.1f} s"
    return Cell(f"MISSED goal {goal}: {took}", "missed") if is_slow(row) else Cell(f"{goal} met", "met")


def _table(file: ResultsFile, link: Link) -> Table:
    rows = []
    for line, row in sorted(_builds(file), key=lambda b: -b[1].get("seconds", float("inf"))):
        seconds = [
            f"{row[part]:.1f}" if part in row else "-" for part in ("seconds", "processor_seconds", "ptxas")
        ]
        text = cells([row["family"], row["kernel"], *seconds, _outcome(row), source(file, [line], link)])
        rows.append((f"{anchor(file, 'build')}-{line}", text))
    columns = ("family", "kernel", "seconds", "of processors", "of ptxas", "goal", "rows")
    note = f"Cold builds on {file.head.get('cpus', '-')} processors. {file.head.get('note', '')}".strip()
    return Table(f"compile time: {file.path.name}", columns, tuple(rows), file.environment, note)
