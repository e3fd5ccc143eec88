"""Results files as they lie in a folder: records with the numbers of their lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.report import Row
from comfuse.generator.plan import GPUS, Gpu


@dataclass(frozen=True)
class ResultsFile:
    """``records``: all but the header, each with the number of its line."""

    path: Path
    head: dict[str, Any]
    records: tuple[tuple[int, dict[str, Any]], ...]

    @property
    def experiment(self) -> str:
        return str(self.head["experiment"])

    @property
    def rows(self) -> list[tuple[int, Row]]:
        """The rows of providers on workloads, each with the number of its line."""
        return [(number, row) for number, r in self.records for row in report.rows_of([r])]

    @property
    def gpu(self) -> Gpu | None:
        """The planner's entry of the GPU that was measured; None if it has none."""
        name = str((self.head.get("gpu") or {}).get("name", "")).lower()
        return next((gpu for key, gpu in GPUS.items() if key in name), None)

    @property
    def environment(self) -> str:
        """What the numbers were measured on, in one line."""
        head, gpu = self.head, self.head.get("gpu") or {}
        facts = [
            gpu.get("name", "no GPU"),
            f"driver {gpu.get('driver_version', '-')}",
            f"torch {head.get('torch') or '-'}",
            f"Triton {head.get('triton') or '-'}",
            f"CUTLASS {head.get('cutlass') or '-'}",
            f"Python {head.get('python') or '-'}",
            f"commit {head.get('commit') or '-'}",
            str(head.get("date", "-")),
        ]
        facts += [f"{key}: {head[key]}" for key in ("processes", "rounds") if key in head]
        return ", ".join(facts)


def read(paths: Iterable[Path]) -> list[ResultsFile]:
    """The files, newest first by the date in their headers.

    Raises:
        ValueError: one of them does not begin with a header.
    """
    files = []
    for path in paths:
        (_, head), *records = report.numbered(path)
        files.append(ResultsFile(path, head, tuple(records)))
    return sorted(files, key=lambda f: str(f.head.get("date", "")), reverse=True)


def committed(folder: Path) -> list[Path]:
    """All results files in a folder, those of explorations too."""
    return [*sorted(folder.glob("*.jsonl")), *sorted(folder.glob("exploration/*.jsonl"))]


def ranges(lines: Iterable[int]) -> str:
    """Numbers of lines for people: ``"2-6, 9"``."""
    runs: list[list[int]] = []
    for line in sorted(set(lines)):
        if runs and runs[-1][1] == line - 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)
