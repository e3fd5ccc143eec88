"""The table of one file, as the run that wrote it printed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import overhead, plain_gemm, report
from bench.page.files import ResultsFile
from bench.report import Row


def table(file: ResultsFile) -> str:
    """What was measured where, and the table."""
    records = [r for _, r in file.records]
    rows = report.rows_of(records)
    if file.experiment == "plain_gemm":
        text = plain_gemm.table(rows, [r for r in records if r["record"] == "compile"])
    elif file.experiment == "overhead":
        text = overhead.table(records)
    elif file.experiment == "models":
        from bench.models.report import table as of_models  # needs transformers, which no other does

        text = of_models(rows)
    else:
        text = report.table(rows)
    return f"{describe(file.head, rows)}\n{text}"


def describe(head: dict[str, Any], rows: Sequence[Row]) -> str:
    """The heading of a table."""
    gpu = head.get("gpu") or {}
    processes = len({row.process for row in rows})
    over = f"; medians over {processes} processes [smallest-largest]" if processes else ""
    return (
        f"{head['experiment']} on {gpu.get('name', 'no GPU')}, driver {gpu.get('driver_version', '-')}, "
        f"torch {head['torch']}, CUTLASS {head['cutlass']}, commit {head['commit']}, {head['date']}{over}"
    )
