"""Cooperative tiles of the widths that one wgmma does not have, or that no other schedule has."""

from __future__ import annotations

import pytest

from comfuse.generator.spec import Major
from tests.gpu.compare import check, check_exact
from tests.gpu.programs import BIAS, LAYERNORM, gemma_chain
from tests.gpu.reductions import COLUMN_PLAIN, FULL_PLAIN, group_fields
from tests.gpu.support import WIDTHS, Case, make_tensors, run_kernel
from tests.gpu.test_unaligned import everything

pytestmark = pytest.mark.gpu

SIZES = ((1, 72), (127, 8), (1000, 1024), (16344, 72))

CLOSE = (
    *(Case(LAYERNORM, n, schedule=s) for n in (224, 1152, 4128) for s in WIDTHS),
    *(Case(gemma_chain(4608), 4608, schedule=s) for s in WIDTHS),
    Case(LAYERNORM, 1152, schedule=WIDTHS[2], cluster_n=1),
    # B not permuted on its way.
    *(Case(everything(1001), 1001, schedule=s) for s in WIDTHS[:2]),
    *(Case(LAYERNORM, 1152, schedule=s, batched=True) for s in WIDTHS[:2]),
    Case(LAYERNORM, 1152, schedule=WIDTHS[0], b_major=Major.MN),
    *(Case(group_fields(32), n, schedule=s) for n, s in ((448, WIDTHS[1]), (576, WIDTHS[2]))),
)
EXACT = (
    *(Case(BIAS, 1152, schedule=s) for s in WIDTHS),
    *(Case(p, 600, schedule=s) for p in (*COLUMN_PLAIN, FULL_PLAIN) for s in WIDTHS[:2]),
)


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in SIZES:
        t = make_tensors(case, (3, m // 3 + 1) if case.batched else m, k)
        check(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 72)):
        t = make_tensors(case, m, k, integers=True)
        t.a[..., 2:] = 0  # keeps the sums of squares below 2^24
        check_exact(t, run_kernel(kernels, t), f"M = {m}, K = {k}")
