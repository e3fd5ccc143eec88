"""`python -m bench.tuning`: the tuner's choice on the post-norm shapes, held against every plan.

Each shape is tuned as `comfuse tune` does it and then with `--exhaustive`, in one process.  What counts is
the second: there the plan that the tuner chose and the best of all were timed side by side.  Both write
tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench import report, workloads
from bench.direct import spec_of
from bench.environment import ROOT, header
from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import PlanError
from comfuse.generator.plan import plan
from comfuse.library.rows import m_class
from comfuse.library.tuned.table import update
from comfuse.tune import GpuRunner, Outcome, Runner, Target, tune
from comfuse.tune.text import outcome_text

GOAL = 1.03  # the choice's time over that of the best of all plans


def targets(family: str, shapes: Sequence[str]) -> list[Target]:
    """The workloads of a family that are one kernel with one GEMM; the others are printed."""
    found = []
    for w in workloads.select(family, shapes):
        spec = spec_of(w)
        try:
            if isinstance(spec, ChainSpec):
                raise PlanError("chains are not tuned")
            plan(spec, m=m_class(w.m))
        except PlanError as e:
            print(f"{w.name}: left out: {e}")
            continue
        found.append(Target(w.name, spec, (w.m,)))
    return found


def compare(target: Target, runner: Runner) -> tuple[dict[str, Any], Outcome, Outcome]:
    """What the tuner chooses, and the record that holds it against the best of all plans."""
    quick = tune(target, runner)
    full = tune(target, runner, exhaustive=True)
    choice, race = quick.entry.best.label, full.race
    record = {
        "record": "tuned",
        "workload": target.label,
        "choice": choice,
        "best": race.winner,
        "by_model": full.candidates.by_model,
        "ratio": race.ratio(choice),
        "ratio_of_model": race.ratio(full.candidates.by_model),
        "us": {label: race.us(label) for label in race.order},
        "predicted_us": {plan.label: plan.predicted_us for plan in full.candidates.kept},
        "timed": len(quick.race.samples),
        "plans": len(race.samples),
        "samples": sum(map(len, quick.race.samples.values())),
        "samples_of_all": sum(map(len, race.samples.values())),
        "error": quick.entry.error,
        "allowed": quick.entry.allowed,
        "failures": {f.plan.label: f.reason for f in full.failures},
    }
    return record, quick, full


def table(records: Sequence[dict[str, Any]]) -> str:
    body = [
        [
            r["workload"],
            r["choice"],
            f"{r['us'][r['choice']]:.1f}",
            r["best"],
            f"{r['us'][r['best']]:.1f}",
            f"{r['ratio']:.3f}",
            f"{r['ratio_of_model']:.3f}",
            f"{r['timed']} of {r['plans']}",
            f"{r['samples']} of {r['samples_of_all']}",
        ]
        for r in records
    ]
    heads = ["", "tuned", "us", "best of all", "us", "tuned/best", "model/best", "plans timed", "samples"]
    return tabulate(body, heads, tablefmt="github", disable_numparse=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tuning", description=__doc__)
    parser.add_argument("--family", default="postnorm", choices=list(workloads.FAMILIES))
    parser.add_argument("--shapes", nargs="+", default=[], metavar="MxNxK")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    options = parser.parse_args()

    runner = GpuRunner(say=lambda line: print(line, flush=True))
    results = report.Results(options.output, header("tuning", family=options.family))
    tables = [results.path.with_suffix(suffix) for suffix in (".json", ".exhaustive.json")]
    chosen = targets(options.family, options.shapes)
    runner.build([p for t in chosen for p in t.candidates(runner.gpu, exhaustive=True).kept])
    records = []
    with report.interruptible():
        for target in chosen:
            record, *outcomes = compare(target, runner)
            results.add(record)
            records.append(record)
            for path, outcome in zip(tables, outcomes, strict=True):
                update(path, [outcome.entry])
                print("\n".join(outcome_text(outcome)) + "\n", flush=True)
    print(f"{table(records)}\nrows: {results.path}")
    missed = [r for r in records if r["ratio"] > GOAL or r["failures"]]
    return 1 if missed or len(records) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
