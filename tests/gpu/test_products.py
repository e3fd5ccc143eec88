"""Two GEMMs side by side that share A."""

from __future__ import annotations

import pytest

from comfuse.generator.spec import DType
from tests.gpu.compare import check, check_exact
from tests.gpu.reductions import DIFFERENCE, GATED_NORM, SCHEDULES_OF_TWO, swiglu
from tests.gpu.support import Case, make_tensors, run_kernel, run_op

pytestmark = pytest.mark.gpu

CASES = (
    *(Case(p, 200, schedule=s) for p in (swiglu(), GATED_NORM) for s in SCHEDULES_OF_TWO),
    *(Case(p, n) for p in (swiglu(bias=True), GATED_NORM) for n in (64, 1096)),
    Case(swiglu(), 1096, DType.FP16),
)
EXACT = tuple(Case(DIFFERENCE, 200, schedule=s) for s in SCHEDULES_OF_TWO)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 1024)):
        t = make_tensors(case, m, k)
        check(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_each_product_has_its_own_weight(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 1024)):
        t = make_tensors(case, m, k, integers=True)
        check_exact(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", [Case(swiglu(bias=True), 200), Case(GATED_NORM, 200)], ids=str)
def test_through_the_op(case: Case, kernels) -> None:
    """The second weight comes first among the op's operands."""
    t = make_tensors(case, (2, 129), 72)
    check(t, run_op(kernels, t))
