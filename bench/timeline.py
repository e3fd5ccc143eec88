"""`python -m bench.timeline`: where a tile's time goes, by the clocks that a kernel notes at each step.

The kernel is built with -DCOMFUSE_TIMELINE (csrc/include/comfuse/sm90/timeline.hpp), in which the first
thread of each team writes a few words a tile; it runs alone, far below the power cap.  A team's first tile
fills the pipelines and its last one drains them, so that they stand apart.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

from bench import report, workloads
from bench.environment import ROOT, header

CTAS, TEAMS, TILES, STEPS = 132, 2, 48, 24  # as in timeline.hpp
BEFORE = ("turn", "multiply", "drain", "slots")  # what ends at the second step, the third and so on
OF_PHASE = ("sweep", "publish", "wait")
RUNS = 4  # the last one is read

Clocks = list[list[list[list[int]]]]  # [CTA][team][tile][step], 32 bits; 0: not reached


def steps(phases: int) -> tuple[str, ...]:
    """What passes between two steps that follow each other."""
    return (*BEFORE, *(f"{part} {phase}" for phase in range(phases) for part in OF_PHASE))


def durations(tiles: Iterable[list[int]], phases: int) -> dict[str, list[int]]:
    """Clocks of every step of these tiles."""
    names = steps(phases)
    found: dict[str, list[int]] = {name: [] for name in names}
    for tile in tiles:
        for name, (before, after) in zip(names, pairwise(tile), strict=False):
            found[name].append((after - before) % 2**32)
    return found


def summary(clocks: Clocks, phases: int) -> dict[str, dict[str, int]]:
    """Medians of each step over the teams' first tiles, the others, and the last ones; and the whole.

    ``whole`` is from a team's first step to its last.  Teams with fewer than two tiles do not count.
    """
    last_step = len(steps(phases))
    teams = [[tile for tile in team if tile[last_step]] for cta in clocks for team in cta]
    teams = [tiles for tiles in teams if len(tiles) > 1]
    parts = {
        "first": durations((tiles[0] for tiles in teams), phases),
        "between": durations((tile for tiles in teams for tile in tiles[1:-1]), phases),
        "last": durations((tiles[-1] for tiles in teams), phases),
    }
    found: dict[str, dict[str, int]] = {
        name: {part: int(median(of[name])) for part, of in parts.items() if of[name]}
        for name in steps(phases)
    }
    whole = [(tiles[-1][last_step] - tiles[0][0]) % 2**32 for tiles in teams]
    found["whole"] = {"median": int(median(whole)), "longest": max(whole)} if whole else {}
    return found


def measure(name: str, schedule: str, cluster_n: int | None) -> dict[str, Any]:
    """A record of one workload, by the plan of that schedule and tile.

    Raises:
        PlanError: the planner refuses it.
    """
    import torch

    from bench.direct import launching, spec_of
    from bench.launch import forced_plan
    from bench.programs import make_inputs
    from comfuse import library
    from comfuse.build import build
    from comfuse.generator.emit import emit

    w = workloads.by_name(name)
    source = emit(forced_plan(spec_of(w), schedule, cluster_n))
    call: Callable[[], object] = launching(lambda _: source)(w, make_inputs(w, seed=1))
    for _ in range(RUNS):
        call()
    torch.cuda.synchronize()
    read = getattr(library.load(build(source)).handle, f"cf_timeline_{source.name}")
    buffer = ((((ctypes.c_uint32 * STEPS) * TILES) * TEAMS) * CTAS)()
    code = read(ctypes.byref(buffer))
    if code:
        raise RuntimeError(f"cudaMemcpyFromSymbol returned {code}")
    clocks = [[[list(tile) for tile in team] for team in cta] for cta in buffer]
    return {
        "record": "timeline",
        "workload": name,
        "plan": source.plan.shape.name,
        "steps": summary(clocks, len(source.plan.program.phases)),
    }


def table(record: dict[str, Any]) -> str:
    columns = ("first", "between", "last")
    of_steps = {step: values for step, values in record["steps"].items() if step != "whole"}
    rows = [[step, *(values.get(c, "-") for c in columns)] for step, values in of_steps.items()]
    rows.append(["sum", *(sum(values.get(c, 0) for values in of_steps.values()) for c in columns)])
    whole = record["steps"]["whole"]
    return (
        f"{record['workload']}, {record['plan']}: clocks of a team's tiles, medians\n\n"
        f"{tabulate(rows, ['step', *columns], tablefmt='github')}\n\n"
        f"a team's tiles together: {whole.get('median', '-')}, at most {whole.get('longest', '-')}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.timeline", description=__doc__)
    parser.add_argument(
        "workloads",
        nargs="+",
        metavar="NAME:PLAN",
        help="e.g. postnorm-16384x768x768:pingpong-128x128, or with a cluster along M :pingpong-128x128-m2",
    )
    parser.add_argument("--cluster", type=int, default=None, help="CTAs of a cluster; default: the most")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    options = parser.parse_args()
    os.environ["COMFUSE_NVCC_FLAGS"] = (
        f"{os.environ.get('COMFUSE_NVCC_FLAGS', '')} -DCOMFUSE_TIMELINE".strip()
    )
    results = report.Results(options.output, header("timeline"))
    for wanted in options.workloads:
        name, _, schedule = wanted.partition(":")
        record = measure(name, schedule, options.cluster)
        report.write(results.path, [record])
        print(table(record))
    print(f"rows: {results.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
