"""A few small launches of every schedule and kind of program, to run under compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m tests.gpu.sanitize
    compute-sanitizer --tool racecheck python -m tests.gpu.sanitize --programs bare layernorm

`--build` only builds the kernels, outside the tool.  `--programs bare` is the plain GEMM of the same
layer: what racecheck says of the others is to be held against what it says of that one.
"""

from __future__ import annotations

import argparse
import sys

import torch

from comfuse import library
from comfuse.build import packs
from comfuse.build.cache import BuiltKernel
from comfuse.generator import emit
from comfuse.generator.errors import PlanError
from comfuse.generator.spec import Major, Pair
from tests.gpu.compare import check
from tests.gpu.programs import BARE, LAYERNORM, SOFTMAX, gemma_chain
from tests.gpu.reductions import (
    ALL_AXES,
    FULL_FIELDS,
    GATED_NORM,
    ROW_FIELDS,
    SCHEDULES_OF_TWO,
    WIDE_SCHEDULES,
    group_fields,
)
from tests.gpu.support import SCHEDULES, Case, launcher, make_tensors
from tests.gpu.test_operands import INTEGERS, POSITIONS
from tests.gpu.test_stores import HEADS
from tests.gpu.test_unaligned import everything
from tests.gpu.two_factors import BOTH

# N = 200 is clipped, and one tile on the widest schedule; N = 520 is a row group on every schedule.
PROGRAMS: dict[str, tuple[Case, ...]] = {
    "bare": tuple(Case(BARE, n, schedule=s) for n in (200, 520) for s in SCHEDULES),
    "layernorm": tuple(Case(LAYERNORM, n, schedule=s) for n in (200, 520) for s in SCHEDULES),
    "clusters": tuple(Case(p, 200, schedule=s) for p in (SOFTMAX, gemma_chain(200)) for s in SCHEDULES[1:3]),
    "wide": (Case(LAYERNORM, 576, schedule="cooperative-128x288"),),
    "softmax": tuple(Case(SOFTMAX, 520, schedule=s) for s in SCHEDULES),
    "gemma": tuple(Case(gemma_chain(520), 520, schedule=s) for s in SCHEDULES),
    "rows": tuple(Case(ROW_FIELDS, 520, schedule=s) for s in WIDE_SCHEDULES),
    "columns": tuple(Case(p, 200, schedule=s) for p in (ALL_AXES, FULL_FIELDS) for s in WIDE_SCHEDULES),
    "groups": tuple(Case(group_fields(64), 448, schedule=s) for s in WIDE_SCHEDULES),
    "products": tuple(Case(GATED_NORM, 200, schedule=s) for s in SCHEDULES_OF_TWO),
    "factors": tuple(
        Case(BOTH, 200, schedule=s, second=Pair(72, b_major=Major.MN)) for s in SCHEDULES_OF_TWO
    ),
    "layouts": (
        *(Case(LAYERNORM, 200, a_major=a, b_major=b) for a in Major for b in Major),
        Case(LAYERNORM, 200, batched=True),
    ),
    "unaligned": (Case(everything(100), 100), Case(everything(7), 7)),
    "strided": (Case(POSITIONS, 200), Case(INTEGERS, 333), Case(HEADS, 384)),
}
SIZES = ((1, 8), (130, 72), (300, 136))


def _kernels(names: list[str]) -> list[tuple[Case, emit.KernelSource]]:
    found = []
    for case in (case for name in names for case in PROGRAMS[name]):
        try:
            found.append((case, emit.emit(case.plan())))
        except PlanError as e:
            print(f"{case}: refused: {e}")
    return found


def _lead(case: Case, m: int) -> tuple[int, ...]:
    return (3, m) if case.batched else (m,) if m < 130 else (2, m // 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.sanitize", description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--build", action="store_true", help="build the kernels, launch nothing")
    options = parser.parse_args()

    kernels = _kernels(options.programs)
    built = packs.build_all([source for _, source in kernels], say=print)
    failures = [e for e in built.values() if isinstance(e, Exception)]
    if failures:
        raise failures[0]
    if options.build:
        print(f"{len(built)} kernels built")
        return 0
    launches = 0
    for case, source in kernels:
        packed = built[source.name]
        assert isinstance(packed, BuiltKernel)
        kernel = library.load(packed)
        for m, k in SIZES:
            t = make_tensors(case, _lead(case, m), k)
            out = t.outputs()
            launch = launcher(kernel, t, out)
            for _ in range(2):  # once with either tag of the exchange
                launch()
                launches += 1
            torch.cuda.synchronize()
            out.check_guards()
            check(t, out.tiles, f"{case} M = {m}, K = {k}")
    print(f"{launches} launches of {len(kernels)} kernels, all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
