"""Clusters of two row blocks, whose CTAs share B: rows that wait, phantoms, all ways in which B comes."""

from __future__ import annotations

import pytest
import torch

from comfuse.generator.spec import DType, Major, Pair
from tests.gpu.compare import check, check_exact, same_bits
from tests.gpu.feedback import BATCH_NORM, COLUMN_SOFTMAX
from tests.gpu.programs import BIAS, LAYERNORM, SOFTMAX, gemma_chain, rmsnorm
from tests.gpu.reductions import (
    ALL_AXES,
    COLUMN_FIELDS,
    COLUMN_PLAIN,
    FULL_FIELDS,
    FULL_PLAIN,
    GATED_NORM,
    RELU_SUM,
)
from tests.gpu.support import Case, make_tensors, run_kernel
from tests.gpu.two_factors import BOTH, MIDDLE

pytestmark = pytest.mark.gpu

K, MN = Major.K, Major.MN
SCHEDULES = (
    "pingpong-128x128-m2",
    "pingpong2-128x128-m2",
    "cooperative-128x128-m2",
    "cooperative-128x256-m2",
)
PINGPONG, PINGPONG2, NARROW, WIDE = SCHEDULES
FACTORS = "cooperative-128x128-m2"  # of two products
# Odd numbers of row blocks have a phantom; the last takes several pairs of row blocks a cluster.
SIZES = ((1, 72), (129, 8), (257, 1024), (1000, 72), (16344, 72))

CLOSE = (
    # Rows that wait: one tile a row, two, an odd number, a last one that is clipped.
    *(Case(LAYERNORM, n, schedule=s) for n in (128, 256, 768, 1000, 5376) for s in SCHEDULES),
    *(Case(LAYERNORM, n, schedule="cooperative-128x192-m2") for n in (384, 1152)),
    *(Case(LAYERNORM, n, schedule="cooperative-128x320-m2") for n in (640, 2560)),
    *(Case(rmsnorm(1152, after=True, offset=1.0), 1152, schedule=s) for s in SCHEDULES),
    *(Case(SOFTMAX, 1000, schedule=s) for s in SCHEDULES),
    *(Case(gemma_chain(1152), 1152, schedule=s) for s in SCHEDULES),
    # A B that is not permuted.
    *(Case(LAYERNORM, 1152, DType.FP16, s, b_major=MN) for s in SCHEDULES),
    *(Case(LAYERNORM, 1152, schedule=s, a_major=MN, b_major=MN) for s in (PINGPONG, WIDE)),
    Case(SOFTMAX, 1003, schedule=WIDE),
    # Column and full reductions, which rows may be read beside.
    *(Case(p, 200, schedule=s) for p in (COLUMN_FIELDS, ALL_AXES) for s in (PINGPONG, NARROW)),
    *(Case(FULL_FIELDS, 200, schedule=s) for s in (PINGPONG, PINGPONG2, WIDE)),
    # Two products.
    *(Case(GATED_NORM, 256, schedule=s) for s in ("pingpong-128x64-m2", "pingpong2-128x64-m2", FACTORS)),
    Case(MIDDLE, 256, schedule=FACTORS, second=Pair(256, K, MN)),
)
EXACT = (
    *(Case(BIAS, n, schedule=s) for n in (8, 200, 4104) for s in SCHEDULES),
    *(Case(p, 200, schedule=s) for p in (*COLUMN_PLAIN, FULL_PLAIN, RELU_SUM) for s in (PINGPONG, WIDE)),
)
PAIRS = tuple(
    Case(BOTH, 200, schedule=FACTORS, second=p) for p in (Pair(200), Pair(72, K, MN), Pair(130, MN, MN))
)
# All tiles of a column at once, on at most 66 clusters.
COLUMNS = tuple(
    Case(p, 200, schedule=s, m=m)
    for p, s, m in ((BATCH_NORM, NARROW, 8448), (BATCH_NORM, WIDE, 16896), (COLUMN_SOFTMAX, NARROW, 8448))
)


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in SIZES:
        t = make_tensors(case, m, k)
        check(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 72)):
        t = make_tensors(case, m, k, integers=True)
        t.a[..., 2:] = 0  # keeps the sums of squares below 2^24
        check_exact(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_each_product_has_its_own_factors(case: Case, kernels) -> None:
    for m, k in SIZES:
        t = make_tensors(case, m, k, integers=True)
        check_exact(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", COLUMNS, ids=str)
def test_columns_that_wait(case: Case, kernels) -> None:
    for m in (1, 129, 257, case.m):
        t = make_tensors(case, m, 72)
        check(t, run_kernel(kernels, t), f"M = {m}")


@pytest.mark.parametrize("case", [c for c in CLOSE if c.n in (200, 256, 768)] + list(PAIRS[:1]), ids=str)
def test_launches_are_bit_identical(case: Case, kernels) -> None:
    """An odd number of row blocks, of which each cluster has several."""
    t = make_tensors(case, 40001, 72)
    first = run_kernel(kernels, t)
    for _ in range(10):
        assert all(same_bits(x, y) for x, y in zip(run_kernel(kernels, t), first, strict=True))


@pytest.mark.parametrize("case", [Case(LAYERNORM, 768, schedule=s) for s in SCHEDULES], ids=str)
def test_rows_with_nan_and_infinity(case: Case, kernels) -> None:
    """They reach their own row, whole, and none of the other row block."""
    t = make_tensors(case, 1000, 72)
    t.a[5, 3], t.a[130, 0] = float("nan"), float("inf")
    (output,) = run_kernel(kernels, t)
    wrong = ~torch.isfinite(output.float()).all(dim=-1)
    assert wrong.nonzero().flatten().tolist() == [5, 130]
