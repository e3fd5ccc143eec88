"""What benches of a few named cases share: the arguments, the results file, the table."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench import report
from bench.ahead import build_all
from bench.environment import ROOT, header
from comfuse.generator.emit import KernelSource

Record = dict[str, Any]


class Named(Protocol):
    @property
    def name(self) -> str: ...


Case = TypeVar("Case", bound=Named)


def parser(experiment: str, description: str | None, cases: Sequence[Named]) -> argparse.ArgumentParser:
    """Arguments of `python -m bench.EXPERIMENT`."""
    result = argparse.ArgumentParser(prog=f"python -m bench.{experiment}", description=description)
    names = [case.name for case in cases]
    result.add_argument("--rounds", type=int, default=30)
    result.add_argument("--cases", nargs="+", default=names, choices=names)
    result.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    return result


def run(
    experiment: str,
    cases: Sequence[Case],
    options: argparse.Namespace,
    sources: Callable[[Case], Iterable[KernelSource]],
    measure: Callable[[Case], Iterable[Record]],
    table: Callable[[list[Record]], str],
) -> int:
    """Builds the kernels of the chosen cases, measures each and keeps its rows at once; 1 if any failed."""
    # A fallback would be timed under ComFuse's name.
    os.environ["COMFUSE_STRICT"] = "1"
    results = report.Results(options.output, header(experiment, rounds=options.rounds))
    records: list[Record] = []
    chosen = [case for case in cases if case.name in options.cases]
    with report.interruptible():
        build_all(source for case in chosen for source in sources(case))
        for case in chosen:
            for record in measure(case):
                results.add(record)
                records.append(record)
    print(f"\n{table(records)}\nrows: {results.path}")
    return 1 if any("failure" in record for record in records) else 0
