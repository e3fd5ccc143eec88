"""`python -m bench models`: measure blocks of models, print the table, keep the rows and the explanations."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from bench.environment import header
from bench.models import explain, providers, report
from bench.processes import run_process
from bench.report import Results, interruptible, rows_of
from bench.workloads.models import select_models

ROUNDS = 20


def _parse(arguments: list[str], results: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench models", description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", default=[], metavar="NAME", help="or models; default: all of them"
    )
    parser.add_argument(
        "--providers", nargs="+", default=list(providers.PROVIDERS), metavar="NAME",
        help=f"any of: {', '.join(providers.PROVIDERS)}",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=1, help="fresh processes to take medians over")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed replays of each graph in a process")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="start no further workload after so many seconds"
    )
    parser.add_argument(
        "--measure", action="store_true", help="in the explanations, time each region fused and unfused"
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="time nothing: write what is planned for the H200 of every model, in inference and training",
    )
    parser.add_argument("--output", type=Path, default=results, metavar="DIR")
    return parser.parse_args(arguments)


def main(arguments: list[str], results_folder: Path) -> int:
    options = _parse(arguments, results_folder)
    try:
        if options.explain:
            explain.write(explain.steps(options.workloads), options.output)
            return 0
        chosen = select_models(options.workloads)
        names = [p.name for p in providers.select(options.providers)]
    except ValueError as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2

    begun = time.monotonic()
    head = header("models", processes=options.processes, rounds=options.rounds, providers=names)
    results = Results(options.output, head)

    def keep(record: dict[str, Any]) -> None:
        if record["record"] == "explain":  # tables for people: a file of their own
            with results.path.with_suffix(".txt").open("a") as file:
                file.write(f"== {record['workload']}\n{record['text']}\n\n")
            return
        results.add(record)
        for row in rows_of([record]):
            figure = f"{row.us:9.1f} us" if row.us is not None else f"FAILED {row.failure}"
            print(
                f"[{time.monotonic() - begun:5.0f} s] {row.workload:26} {row.provider:13} {figure}",
                flush=True,
            )

    workloads = [w.name for w in chosen]
    worker = ["bench.models.worker"]
    if options.budget is not None:
        worker += ["--until", str(time.time() + options.budget)]
    if options.measure:
        worker += ["--measure"]
    with interruptible():
        for process in range(options.processes):
            run_process(workloads, names, process, options.rounds, results.log, keep, worker_module=worker)
    print(f"\n{report.table(results.rows)}\nrows: {results.path}")
    return 1 if results.failed else 0
