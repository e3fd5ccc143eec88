"""A few small launches of every schedule and scope, to run under compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m tests.gpu.sanitize
    compute-sanitizer --tool racecheck python -m tests.gpu.sanitize --programs bare layernorm

`--build` only builds the kernels, outside the tool.  `--programs bare` is the plain GEMM of the same
layer: what racecheck says of the others is to be held against what it says of that one.
"""

from __future__ import annotations

import argparse
import sys

import torch

from bench.launch import SCHEDULES
from comfuse import library
from comfuse.build import build_many
from comfuse.generator import emit
from comfuse.generator.errors import PlanError
from tests.gpu.kernels import plan_of
from tests.gpu.programs import BARE, LAYERNORM, SOFTMAX, Program, gemma_chain
from tests.gpu.support import Case, Outputs, check, launcher, make_tensors

# N = 200 is clipped, and one tile on the widest schedule; N = 520 is a row group on every schedule.
NS = (200, 520)
SIZES = ((1, 8), (130, 72), (300, 136))
PROGRAMS = ("bare", "layernorm", "softmax", "gemma")


def _program(name: str, n: int) -> Program:
    return {"bare": BARE, "layernorm": LAYERNORM, "softmax": SOFTMAX}.get(name) or gemma_chain(n)


def _kernels(names: list[str]) -> list[tuple[Case, emit.KernelSource]]:
    found = []
    for name in names:
        # Of the programs with several reductions one N will do: the tools are slow.
        for n in NS if name in ("bare", "layernorm") else NS[1:]:
            for schedule in SCHEDULES:
                case = Case(_program(name, n), n, schedule=schedule)
                try:
                    found.append((case, emit.emit(plan_of(case))))
                except PlanError as e:
                    print(f"{case}: refused: {e}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.sanitize", description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--build", action="store_true", help="build the kernels, launch nothing")
    options = parser.parse_args()

    kernels = _kernels(options.programs)
    built = build_many([source for _, source in kernels])
    if options.build:
        print(f"{len(built)} kernels built")
        return 0
    launches = 0
    for (case, _), b in zip(kernels, built, strict=True):
        kernel = library.load(b)
        for m, k in SIZES:
            t = make_tensors(case, m, k)
            out = Outputs(t)
            launch = launcher(kernel, t, out)
            for _ in range(2):  # once with either tag of the exchange
                launch()
                launches += 1
            torch.cuda.synchronize()
            out.check_guards()
            check(t, out.tensors, f"{case} M = {m}, K = {k}")
    print(f"{launches} launches of {len(kernels)} kernels, all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
