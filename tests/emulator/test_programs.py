"""What a program may reduce, read and store, in kernels on an emulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfuse.generator.spec import DType
from tests.emulator.cases import kernel_of, launched
from tests.gpu import test_operands as operands
from tests.gpu import test_stores as stores
from tests.gpu.compare import check, check_exact
from tests.gpu.reductions import (
    ALL_AXES,
    COLUMN_FIELDS,
    CROSS_ENTROPY,
    FULL_FIELDS,
    GROUP_PLAIN,
    ROW_FIELDS,
    group_fields,
    group_quantise,
)
from tests.gpu.support import Case, make_tensors

#: Groups of three and of five pieces; the last tile of 480 columns has two groups of 96 and none of a third.
CLOSE = (
    Case(group_fields(96), 480, schedule="cooperative-128x192", cluster_n=1),
    Case(group_quantise(160), 320, schedule="cooperative-128x320", cluster_n=1),
    Case(ROW_FIELDS, 200, schedule="pingpong-128x128", cluster_n=2),
    Case(CROSS_ENTROPY, 200, schedule="pingpong-128x128", cluster_n=2),
    Case(COLUMN_FIELDS, 200, schedule="cooperative-128x128", cluster_n=1),
    Case(FULL_FIELDS, 200, schedule="pingpong-128x64", cluster_n=1),
    Case(ALL_AXES, 200, schedule="cooperative-128x128", cluster_n=2),
)
EXACT = (
    Case(GROUP_PLAIN[0], 448, schedule="pingpong-128x128", cluster_n=1),
    Case(operands.INTEGERS, 208, schedule="cooperative-128x256", cluster_n=1),
    Case(operands.WIDE_INTEGERS, 208, schedule="pingpong-128x128", cluster_n=1),
)
STORES = (
    Case(stores.storing(stores.FIRST, strided=False), 208, schedule="pingpong-128x128", cluster_n=1),
    Case(stores.storing((DType.BF16, DType.E4M3), strided=True), 208, schedule="cooperative-128x128"),
    Case(stores.HEADS, 384, schedule="pingpong-128x128", cluster_n=1),
)


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_against_float64(case: Case, tmp_path: Path, include: Path) -> None:
    kernel = kernel_of(case, tmp_path, include, processors=6)
    for seed, m in enumerate((1, 200)):
        t = make_tensors(case, m, 72, seed=seed, device="cpu")
        check(t, launched(kernel, t, seed=seed, launches=2).tiles, f"M = {m}")


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, tmp_path: Path, include: Path) -> None:
    kernel = kernel_of(case, tmp_path, include)
    for seed, m in enumerate((1, 200)):
        t = make_tensors(case, m, 72, integers=True, seed=seed, device="cpu")
        check_exact(t, launched(kernel, t, seed=seed).tiles, f"M = {m}")


@pytest.mark.parametrize("period", [1, 100])
def test_operands_that_repeat_over_the_rows(period: int, tmp_path: Path, include: Path) -> None:
    case = Case(operands.POSITIONS, 200, schedule="pingpong-128x128", cluster_n=2)
    kernel = kernel_of(case, tmp_path, include, processors=4)
    t = make_tensors(case, (3, period), 72, seed=period, device="cpu", shared=("position",))
    check(t, launched(kernel, t, seed=period).tiles)


@pytest.mark.parametrize("case", STORES, ids=str)
def test_every_dtype_and_layout(case: Case, tmp_path: Path, include: Path) -> None:
    kernel = kernel_of(case, tmp_path, include)
    for lead in ((1, 1), (2, 129)):
        t = stores.with_limits(case, lead, device="cpu")
        check_exact(t, launched(kernel, t, seed=lead[1]).tiles, f"M = {lead}")
