"""The table of one file, as the run that wrote it printed it."""

from __future__ import annotations

from bench import overhead, plain_gemm, report
from bench.models import report as models_report
from bench.page.families import families
from bench.page.files import ResultsFile


def table(file: ResultsFile) -> str:
    """What was measured where, and the table."""
    if file.experiment not in (*families(), "overhead"):
        return f"{file.path.name}: no table for the experiment {file.experiment}"
    records = [r for _, r in file.records]
    rows = report.rows_of(records)
    if file.experiment == "plain_gemm":
        text = plain_gemm.table(rows, [r for r in records if r["record"] == "compile"])
    elif file.experiment == "overhead":
        text = overhead.table(records)
    elif file.experiment == "models":
        text = models_report.table(rows)
    else:
        text = report.table(rows)
    return f"{report.describe(file.head, rows)}\n{text}"
