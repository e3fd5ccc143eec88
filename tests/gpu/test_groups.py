"""Reductions of groups of neighbouring columns: as outputs, and read back by the tile."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.compare import check, check_exact, same_bits
from tests.gpu.reductions import (
    GROUP_PLAIN,
    SCHEDULES,
    WIDE_SCHEDULES,
    group_fields,
    group_quantise,
    plain,
)
from tests.gpu.support import Case, make_tensors, run_kernel

pytestmark = pytest.mark.gpu

SINGLE = tuple(Case(plain("group", m), 448, schedule=SCHEDULES[1]) for m in ("sumsq", "prod"))
EXACT = (*(Case(p, 448, schedule=s) for p in GROUP_PLAIN for s in WIDE_SCHEDULES), *SINGLE)
CLOSE = (
    *(Case(group_fields(64), 448, schedule=s) for s in WIDE_SCHEDULES),
    *(Case(group_fields(g), 384) for g in (32, 96, 128)),
    *(Case(group_quantise(g), 384) for g in (32, 128)),
    *(Case(group_quantise(g), 2 * g) for g in (160, 224)),
    *(Case(group_quantise(64), 448, schedule=s) for s in WIDE_SCHEDULES),
)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 40)):
        t = make_tensors(case, m, k, integers=True)
        check_exact(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 1024)):
        t = make_tensors(case, m, k)
        check(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", [c for c in EXACT if "prod" not in c.program.name], ids=str)
def test_nan_spoils_its_group_alone(case: Case, kernels) -> None:
    t = make_tensors(case, 257, 72, integers=True)
    before = run_kernel(kernels, t)
    t.operands[0][131, 200] = float("nan")
    after = run_kernel(kernels, t)
    spoilt = torch.zeros_like(before[0], dtype=torch.bool)
    spoilt[131, 200 // 64] = True
    for x, y in zip(before, after, strict=True):
        assert torch.equal(torch.isnan(y), spoilt)
        assert same_bits(x[~spoilt], y[~spoilt])
