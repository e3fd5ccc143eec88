"""`python -m bench.plain_gemm`: GEMMs with nothing behind them, on two kernel layers and on cuBLAS.

Which layer the product stands on is decided by this experiment: our own, if it reaches at least 0.98 of
the stock CUTLASS layer's speed on the eight post-norm shapes.  Seconds of compiling stand beside it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench import providers, report, stock, workloads
from bench.ahead import build_all, sources_of
from bench.environment import ROOT, header
from bench.goals import geomean
from bench.processes import run_process
from bench.report import Row, Spread
from bench.workloads import Target

TARGET = Target(0.98, "inductor")  # in whose place stands the stock layer
# The kernels whose compile times are compared; N is a constant of our own kernels' text.
COMPILE_N, COMPILE_K = 1024, 1024


def compile_times() -> list[dict[str, Any]]:
    """nvcc's seconds for each variant, all at once, each on a core of its own; builds the stock libraries."""

    def own(schedule: str) -> float:
        source = providers.own_gemm(schedule, COMPILE_N, COMPILE_K)
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / f"{source.name}.cu"
            text.write_text(source.text)
            return stock.compile_seconds(text, text.with_suffix(".so"))

    def measured(name: str, compile_it: Any, *arguments: Any) -> dict[str, Any]:
        record: dict[str, Any] = {"record": "compile", "kernel": name}
        try:
            record["seconds"] = round(compile_it(*arguments), 2)
        except Exception as e:  # a variant that does not compile must not hide the others
            record["failure"] = f"{type(e).__name__}: {e}"[-600:]
        return record

    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(measured, v.name, stock.build, v) for v in stock.VARIANTS]
        futures += [pool.submit(measured, f"own-{s}", own, s) for s in providers.OWN_PLANS]
        return [f.result() for f in futures]


def table(rows: Sequence[Row], compiles: Sequence[dict[str, Any]]) -> str:
    """Compile seconds; all variants; last each contender's best a shape, and own over stock in speed."""
    contenders = {"stock": [p.name for p in providers.STOCK], "own": [p.name for p in providers.OWN]}
    variants = ["mm", *contenders["stock"], *contenders["own"]]
    body, ratios, everything = [], [], []
    for name in dict.fromkeys(r.workload for r in rows):
        times: dict[int, dict[str, float]] = {}
        for r in rows:
            if r.workload == name and r.us is not None:
                times.setdefault(r.process, {})[r.provider] = r.us
        cells = [workloads.by_name(name).shape, _median(times, ["mm"])[0]]
        for names in contenders.values():
            cells += _median(times, names)
        pairs = [
            tuple(min((t[n] for n in names if n in t), default=None) for names in contenders.values())
            for t in times.values()
        ]
        speeds = [s / o for s, o in pairs if s is not None and o is not None]
        if speeds:
            ratios.append(Spread.of(speeds))
        cells.append(ratios[-1].text(3) if speeds else "-")
        body.append(cells)
        everything.append([cells[0], *(_median(times, [v])[0] for v in variants)])
    mean = geomean(r.median for r in ratios)
    verdict = ""
    if mean is not None:
        reached = TARGET.met(min(r.median for r in ratios))
        verdict = f"{mean:.3f} ({'own' if reached else 'below on some'})"
    body.append(["geomean", "", "", "", "", "", verdict])
    headers = ["M x N x K", "mm us", "stock us", "variant", "own us", "variant", "own/stock speed"]
    seconds = [[c["kernel"], c.get("seconds", "-"), c.get("failure", "")] for c in compiles]
    parts = [
        tabulate(seconds, ["kernel", "nvcc s", ""], tablefmt="github"),
        tabulate(everything, ["us", *variants], tablefmt="github", disable_numparse=True),
        tabulate(body, headers, tablefmt="github", disable_numparse=True),
    ]
    failed = [
        f"failed: {r.workload} {r.provider} (process {r.process}): {r.failure}" for r in rows if r.failure
    ]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])])


def _median(times: dict[int, dict[str, float]], names: Sequence[str]) -> list[str]:
    """The fastest of these providers by its median over processes: time and name."""
    medians = {n: Spread.of(v).median for n in names if (v := [t[n] for t in times.values() if n in t])}
    if not medians:
        return ["-", "-"]
    best = min(medians, key=medians.__getitem__)
    return [f"{medians[best]:.1f}", best.split("-", 1)[-1]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plain_gemm", description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--shapes", nargs="+", default=[], metavar="MxNxK")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    options = parser.parse_args()

    chosen = workloads.select("postnorm", options.shapes)
    results = report.Results(
        options.output, header("plain_gemm", processes=options.processes, rounds=options.rounds)
    )
    compiles = compile_times()
    for c in compiles:
        results.add(c)
        print(f"{c['kernel']:36} {c.get('seconds', c.get('failure'))}", flush=True)
    build_all(sources_of(providers.OWN, chosen))

    shapes = [w.name for w in chosen]
    names = ["mm", *(p.name for p in (*providers.STOCK, *providers.OWN))]
    with report.interruptible():
        for process in range(options.processes):
            run_process(shapes, names, process, options.rounds, results.log, results.add)
    print(f"\n{table(results.rows, compiles)}\nrows: {results.path}")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
