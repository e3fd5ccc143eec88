"""`python -m bench postnorm`: measure a family of workloads, print the table, keep the rows.

`python -m bench models --help`: whole blocks of models, with options of their own.
`python -m bench model-error --help`: how far the cost model is off, over all results.
`python -m bench fit-chains --help`: the cost model's constants of two GEMMs, fitted to results.
`python -m bench pass-time --help`: what the pass adds to a compile of torch's own.
`python -m bench report --help`: all results as one HTML page, as Markdown, or as they were printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from bench import providers, report, workloads
from bench.ahead import build_all, sources_of
from bench.environment import header
from bench.processes import run_process
from bench.report import Row

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS = 30


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("family", choices=list(workloads.FAMILIES))
    parser.add_argument("--processes", type=int, default=3, help="fresh processes to take medians over")
    parser.add_argument(
        "--providers",
        nargs="+",
        default=list(providers.DEFAULT),
        metavar="NAME",
        help=f"any of: {', '.join(providers.PROVIDERS)}; or plans, for every plan of ComFuse's",
    )
    parser.add_argument(
        "--once",
        nargs="+",
        default=[],
        metavar="NAME",
        help="providers to measure in the first process only, for one that takes long to tune",
    )
    parser.add_argument(
        "--shapes", nargs="+", default=[], metavar="MxNxK", help="or names; default: all of the family"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed replays of each graph in a process")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="start no further process after so many seconds"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["model-error"]:
        from bench.page.model_error import main as model_error

        return model_error(arguments[1:], RESULTS)
    if arguments[:1] == ["fit-chains"]:
        from bench.page.fit_chains import main as fit_chains

        return fit_chains(arguments[1:])
    if arguments[:1] == ["models"]:
        from bench.models.main import main as models  # needs transformers, which no other family does

        return models(arguments[1:], RESULTS)
    if arguments[:1] == ["pass-time"]:
        from bench.models.pass_time import main as pass_time

        return pass_time(arguments[1:], RESULTS)
    if arguments[:1] == ["report"]:
        from bench.page.main import main as reported  # needs transformers too

        return reported(arguments[1:], RESULTS)
    options = _parse(arguments)
    try:
        chosen = workloads.select(options.family, options.shapes)
        contenders = providers.select(tuple(options.providers))
        once = {p.name for p in providers.select(tuple(options.once)) if p.name in options.once}
    except ValueError as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2

    begun = time.monotonic()
    provider_names = [p.name for p in contenders]
    head = header(
        options.family, processes=options.processes, rounds=options.rounds, providers=provider_names
    )
    results = report.Results(options.output, head)
    build_all(sources_of(contenders, chosen))

    def keep(record: dict[str, Any]) -> None:
        results.add(record)
        for row in report.rows_of([record]):
            print(f"[{time.monotonic() - begun:5.0f} s] {_line(row)}", flush=True)

    names = [w.name for w in chosen]
    with report.interruptible():
        for process in range(options.processes):
            if options.budget is not None and process and time.monotonic() - begun > options.budget:
                print(f"{options.budget:.0f} s are over: no more than {process} processes")
                break
            wanted = [n for n in provider_names if process == 0 or n not in once]
            run_process(names, wanted, process, options.rounds, results.log, keep)
    print(f"\n{report.describe(head, results.rows)}\n{report.table(results.rows)}\nrows: {results.path}")
    return 1 if results.failed else 0


def _line(row: Row) -> str:
    if row.us is not None:
        figure = f"{row.us:8.1f} us"
    else:
        figure = f"FAILED {row.failure}" if row.failure else "refused"
    return f"{row.process} {row.workload:34} {row.provider:13} {figure}"


if __name__ == "__main__":
    sys.exit(main())
