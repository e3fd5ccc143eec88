"""`python -m bench model-error [FILES]`: how far the cost model is off, over everything that was measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from bench.page import files, model, tables


def main(arguments: Sequence[str], folder: Path) -> int:
    """Prints the errors by family and schedule; returns 1 where the median over all misses its goal."""
    parser = argparse.ArgumentParser(prog="python -m bench model-error", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="results files; default: all that are committed")
    options = parser.parse_args(arguments)
    try:
        read = files.read(options.files or files.committed(folder))
    except (OSError, ValueError) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2
    errors = model.errors(model.points(read))
    if not errors:
        print("bench: no kernel of ours was timed in these files", file=sys.stderr)
        return 2
    print(table(errors))
    return int(errors[-1].median > model.GOAL)


def table(errors: Sequence[model.Error]) -> str:
    """One line a family and schedule, everything last."""
    body = [
        [
            e.family,
            e.schedule,
            e.points,
            tables.percent(e.median),
            tables.percent(e.worst.error, signed=True),
            f"{e.worst.workload}, {e.worst.plan}",
        ]
        for e in errors
    ]
    headers = ["family", "schedule", "points", "median error", "worst error", "worst on"]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)
