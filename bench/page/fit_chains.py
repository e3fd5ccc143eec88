"""`python -m bench fit-chains FILES`: the constants of kernels of two GEMMs, fitted to results files.

Fits the cost model's ``chain_*`` constants to every chain that the files have a time of, from where they are
now, and prints them for ``generator/plan/constants.py``; then, by workload, how far predictions are off with
these and with those that are fitted without the workload, and what the planner's choice loses.  A constant
that no other workload depends on stays where it is when one is left out: begin elsewhere to test such a one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tabulate import tabulate

from bench.page import files, model, tables
from comfuse.calibrate.least_squares import solve
from comfuse.generator.plan import Gpu
from comfuse.generator.plan.chain import ChainPlan, cost
from comfuse.generator.plan.constants import CHAINS


@dataclass(frozen=True)
class Timed:
    """A chain's kernel that was timed."""

    workload: str
    plan: ChainPlan
    m: int
    us: float

    def predicted_us(self, gpu: Gpu) -> float:
        """By the cost model alone, without the floor."""
        p = self.plan
        programs = p.middle, p.further, p.program
        repeated = cost.repeated(p.spec, p.rows_operand, self.m)
        return cost.predict_us(p.spec, *programs, p.shape, p.weights, gpu, self.m, repeated)

    def error(self, gpu: Gpu) -> float:
        """Predicted over measured, less one."""
        return self.predicted_us(gpu) / self.us - 1


@dataclass(frozen=True)
class Fitted:
    """Of one workload, or of all.

    Attributes:
        errors: with the constants that are fitted to everything.
        without: with those that are fitted without its workload.
        loss: by how much longer than the fastest the choice takes, of both.
    """

    workload: str
    errors: tuple[float, ...]
    without: tuple[float, ...]
    loss: float
    loss_without: float


def fit(gpu: Gpu, timed: Sequence[Timed]) -> Gpu:
    """The GPU with the constants of chains as these launches have them."""
    names = [name for name in gpu.constants.values() if name.startswith(CHAINS)]
    return gpu.calibrated(solve(gpu, [(t, t.us) for t in timed], names))


def check(gpu: Gpu, fitted: Gpu, timed: Sequence[Timed]) -> list[Fitted]:
    """One a workload, then of all together: with the largest losses.

    What only one workload depends on stays as ``gpu`` has it where that is left out.
    """
    found = []
    for workload in dict.fromkeys(t.workload for t in timed):
        own = [t for t in timed if t.workload == workload]
        without = fit(gpu, [t for t in timed if t.workload != workload])
        errors, others = (tuple(t.error(g) for t in own) for g in (fitted, without))
        found.append(Fitted(workload, errors, others, _loss(own, fitted), _loss(own, without)))
    everything = Fitted(
        "all",
        tuple(e for f in found for e in f.errors),
        tuple(e for f in found for e in f.without),
        max(f.loss for f in found),
        max(f.loss_without for f in found),
    )
    return [*found, everything]


def _loss(timed: Sequence[Timed], gpu: Gpu) -> float:
    chosen = min(timed, key=lambda t: (t.predicted_us(gpu), t.plan.registers))  # as the planner does
    return chosen.us / min(t.us for t in timed) - 1


def timed_in(read: Sequence[files.ResultsFile]) -> list[Timed]:
    """All forced plans of chains in the files."""
    return [
        Timed(p.workload, p.kernel, p.m, p.measured_us)
        for p in model.points(read)
        if isinstance(p.kernel, ChainPlan) and p.provider != "comfuse"  # which one of the others repeats
    ]


def main(arguments: Sequence[str]) -> int:
    """Returns 2 where the files hold too little to leave a workload out."""
    parser = argparse.ArgumentParser(prog="python -m bench fit-chains", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="results of `b2b` with plans and of `attention`")
    options = parser.parse_args(arguments)
    try:
        read = files.read(options.files)
    except (OSError, ValueError) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2
    timed = timed_in(read)
    gpus = {file.gpu.name: file.gpu for file in read if file.gpu is not None}
    if len({t.workload for t in timed}) < 2 or len(gpus) != 1:
        print(
            "bench: forced plans of at least two chains, timed on one kind of GPU, are needed",
            file=sys.stderr,
        )
        return 2
    (gpu,) = gpus.values()
    fitted = fit(gpu, timed)
    print(constants(gpu, fitted))
    print(f"\n{table(check(gpu, fitted, timed))}")
    return 0


def constants(gpu: Gpu, fitted: Gpu) -> str:
    """One line a constant, as it was and as it is."""
    before, after = gpu.constants.values(), fitted.constants.values()
    body = [[name, before[name], after[name]] for name in after if name.startswith(CHAINS)]
    return tabulate(body, ["constant", "before", "fitted"], tablefmt="github", floatfmt=".4g")


def table(found: Sequence[Fitted]) -> str:
    """One line a workload, all of them last."""

    def worst(errors: Sequence[float]) -> str:
        return tables.percent(max(errors, key=abs), signed=True)

    def middle(errors: Sequence[float]) -> str:
        return tables.percent(median(map(abs, errors)))

    body = [
        [
            f.workload,
            len(f.errors),
            middle(f.errors),
            worst(f.errors),
            tables.percent(f.loss),
            middle(f.without),
            worst(f.without),
            tables.percent(f.loss_without),
        ]
        for f in found
    ]
    headers = ["workload", "points", "median error", "worst", "choice loses"]
    headers += ["median, left out", "worst, left out", "choice loses, left out"]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)
