"""Reductions of rows: every monoid, as an output and read back by the tile; ties, NaN, infinities."""

from __future__ import annotations

import pytest
import torch

from comfuse.generator.spec import DType
from tests.gpu.compare import check, check_exact, relative_error, same_bits, tolerance, weighty
from tests.gpu.reductions import (
    ROW_FIELDS,
    ROW_MARKS,
    ROW_PLAIN,
    ROW_SCALED,
    SCHEDULES,
    SOFTMAX,
    WIDE_SCHEDULES,
)
from tests.gpu.support import Case, Tensors, make_tensors, run_kernel

pytestmark = pytest.mark.gpu

INF, NAN = float("inf"), float("nan")
EXACT = (
    *(Case(p, 1000, schedule=s) for p in ROW_PLAIN for s in SCHEDULES),
    *(Case(ROW_MARKS, 1000, schedule=s) for s in WIDE_SCHEDULES),
    *(Case(p, n) for p in (*ROW_PLAIN, ROW_MARKS) for n in (64, 5376)),
    *(Case(ROW_SCALED, 200, schedule=s) for s in SCHEDULES),
)
CLOSE = (
    *(Case(SOFTMAX, 1000, schedule=s) for s in SCHEDULES),
    *(Case(ROW_FIELDS, 1000, schedule=s) for s in WIDE_SCHEDULES),
    *(Case(p, n) for p in (ROW_FIELDS, SOFTMAX) for n in (64, 5376)),
    Case(SOFTMAX, 1000, DType.FP16),
)
SPECIAL = (
    *(Case(p, 1000, schedule=s) for p in (SOFTMAX, *ROW_PLAIN) for s in SCHEDULES),
    *(Case(ROW_FIELDS, 1000, schedule=s) for s in WIDE_SCHEDULES),
)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    """Of many equal extremes the first counts, wherever its tile's partial result comes in."""
    for m, k in ((1, 8), (129, 72), (1000, 40)):
        t = make_tensors(case, m, k, integers=True)
        check_exact(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 1024)):
        t = make_tensors(case, m, k)
        check(t, run_kernel(kernels, t), f"M = {m}, K = {k}")
    t = make_tensors(case, 257, 72, integers=True)
    check(t, run_kernel(kernels, t), "whole numbers")


def _special(case: Case) -> tuple[Tensors, Tensors]:
    """Ordinary inputs, and the same with rows of infinities and NaN."""
    clean, t = (make_tensors(case, 257, 72, integers=True) for _ in range(2))
    (addend,) = t.operands
    n = case.n
    addend[3] = -INF  # nothing is left of the row
    addend[5, : n // 2] = -INF  # what a mask does
    addend[131, n - 1] = INF
    addend[140, 7], addend[140, 600] = INF, -INF
    addend[200, n - 3] = NAN
    addend[201, 0], addend[201, n - 1] = NAN, INF
    addend[256] = INF
    t.a[0, 5] = NAN  # spoils the whole row
    return clean, t


ROWS = (0, 3, 5, 131, 140, 200, 201, 256)


@pytest.mark.parametrize("case", SPECIAL, ids=str)
def test_special_values_reach_their_row_and_no_other(case: Case, kernels) -> None:
    clean, t = _special(case)
    before, after = run_kernel(kernels, clean), run_kernel(kernels, t)
    others = torch.ones(t.m, dtype=torch.bool, device=t.a.device)
    others[list(ROWS)] = False
    for x, y in zip(before, after, strict=True):
        assert same_bits(x[others], y[others])
    t.rows = torch.tensor(ROWS, device=t.a.device)
    for name, y, reference in zip(t.output_names, after, t.reference(), strict=True):
        found = y[t.rows]
        if name in ("mean", "var"):  # torch itself gives inf or NaN, by the order of its sums
            assert torch.equal(found.isfinite(), reference.isfinite()), name
        else:
            assert relative_error(found, reference) <= tolerance(y.dtype, weighty(reference)), name


@pytest.mark.parametrize("case", [Case(ROW_PLAIN[2], 1000, schedule=s) for s in SCHEDULES], ids=str)
def test_products_overflow_and_vanish(case: Case, kernels) -> None:
    t = make_tensors(case, 129, 72)
    t.a.zero_()
    (addend,) = t.operands
    addend.fill_(31.0)  # a factor of 2 each
    addend[7] = 33.0  # of 0.5
    addend[8] = -31.0  # of -2
    addend[8, 0] = 31.0
    (product,) = run_kernel(kernels, t)
    assert float(product[7]) == 0.0
    assert float(product[8]) == -INF
    rest = torch.ones_like(product, dtype=torch.bool)
    rest[7:9] = False
    assert bool((product[rest] == INF).all())
