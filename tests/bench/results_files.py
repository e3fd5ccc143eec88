"""Small results files by hand, for the tests of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import __main__ as bench
from bench.report import Row, record
from bench.workloads import POSTNORM

RESULTS = Path(bench.RESULTS)
HEAD = {
    "record": "header",
    "experiment": "postnorm",
    "date": "2026-01-02T00:00:00+00:00",
    "commit": "abc1234",
    "gpu": {"name": "NVIDIA H200", "driver_version": "580.1"},
    "torch": "2.11.0",
    "triton": "3.6.0",
    "cutlass": "4.2.0.0",
    "python": "3.12.3",
    "processes": 2,
    "rounds": 30,
}


def timed(index: int, process: int, **us: float) -> list[dict[str, Any]]:
    """Of a post-norm workload, by its index; a row a provider."""
    return [
        record(
            Row(
                POSTNORM[index].name,
                name.replace("_", "-"),
                process,
                us=t,
                low=0.9 * t,
                high=1.1 * t,
                error=1e-3,
            )
        )
        for name, t in us.items()
    ]


def written(folder: Path, records: list[dict[str, Any]], name: str = "small.jsonl", **head: Any) -> Path:
    """A file with a header, which ``head`` changes."""
    path = folder / name
    path.write_text("\n".join(json.dumps(r) for r in [HEAD | head, *records]) + "\n")
    return path
