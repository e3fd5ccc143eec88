"""Every schedule, forced, against float64: all sizes of M, N and K that clip a tile in another way."""

from __future__ import annotations

import pytest

from comfuse.generator.spec import DType
from tests.gpu.compare import check, same_bits
from tests.gpu.programs import BARE, BIAS, LAYERNORM, SOFTMAX, gemma_chain
from tests.gpu.support import SCHEDULES, Case, make_tensors, run

pytestmark = pytest.mark.gpu

MS = (1, 127, 128, 129, 256, 257, 1000, 16344)
NS = (8, 64, 200, 768, 1000, 1152, 4104, 5376)
KS = (8, 40, 64, 72, 1024)
SIZES = (*((m, 72) for m in MS), *((129, k) for k in KS), (1000, 1024))

CASES = (
    # The row-group exchange: every N on every schedule that takes it.
    *(Case(LAYERNORM, n, schedule=s) for n in NS for s in SCHEDULES),
    # No reduction, and so no row group: a schedule's own loads and stores.
    *(Case(BIAS, n, schedule=s) for n in (8, 200, 4104) for s in SCHEDULES),
    # Several reductions one after the other.
    *(Case(SOFTMAX, 1000, schedule=s) for s in SCHEDULES),
    *(Case(gemma_chain(1152), 1152, schedule=s) for s in SCHEDULES),
    # fp16, and clusters of one.
    *(Case(LAYERNORM, 200, DType.FP16, s) for s in SCHEDULES),
    *(Case(LAYERNORM, 768, schedule=s, cluster_n=1) for s in ("pingpong-128x128", "cooperative-128x256")),
)
EXACT = tuple(Case(p, n, schedule=s) for p, n in ((BARE, 200), (BIAS, 768)) for s in SCHEDULES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    kernel = kernels(case)
    for m, k in SIZES:
        t = make_tensors(case, m, k)
        check(t, run(kernel, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    """The sums are exact in float32, so the output is the one correct rounding, bit for bit."""
    kernel = kernels(case)
    for m, k in ((1, 8), (129, 72), (1000, 1024)):
        t = make_tensors(case, m, k, integers=True)
        (output,) = run(kernel, t)
        (reference,) = t.reference()
        assert same_bits(output[t.rows], reference.to(output.dtype)), f"M = {m}, K = {k}"
