"""N of any size: rows of tiles start wherever they do."""

from __future__ import annotations

from typing import Any

import pytest

from comfuse.generator.spec import DType, Major, Space
from tests.gpu.algebra import Algebra, Out, Program
from tests.gpu.compare import check, check_exact
from tests.gpu.programs import BARE
from tests.gpu.reductions import ALL_AXES, COLUMN_PLAIN, DIFFERENCE, ROW_PLAIN, SCHEDULES, WIDE_SCHEDULES
from tests.gpu.support import Case, make_tensors, run_op

pytestmark = pytest.mark.gpu

NS = (1, 7, 30, 100, 1001, 8191)


def everything(n: int) -> Program:
    """Operands of every kind and dtype, RMSNorm with the values of the row fed back, four outputs."""

    def function(
        a: Algebra, acc: Any, bias: Any, residual: Any, gate: Any, keep: Any, scale: Any, eps: Any
    ) -> Any:
        x = a.add(a.mul(a.add(acc, bias), scale), residual)
        x = a.where(keep, a.mul(x, a.sigmoid(gate)), a.const(0.25))
        rms = a.rsqrt(a.add(a.mul(a.row_sumsq(x), a.const(1 / n)), eps))
        y = a.add(a.mul(x, rms), a.mul(a.column_index(), a.const(1 / n)))
        return y, a.mul(x, x), rms, a.row_max(y)

    tile, row, column = Space.TILE, Space.ROW, Space.COLUMN
    operands = (
        ("bias", row, DType.FP32), ("residual", tile, None), ("gate", tile, DType.FP32),
        ("keep", tile, DType.BOOL), ("scale", column, DType.FP16), ("eps", Space.SCALAR),
    )  # fmt: skip
    outputs = (Out("y"), Out("square", DType.FP32), Out("rms", DType.FP32), Out("largest", DType.FP32))
    return Program("everything", function, operands, outputs, scalars=(1e-5,))


CLOSE = (
    *(Case(everything(n), n) for n in NS),
    *(Case(everything(n), n, schedule=s) for n in (100, 1001) for s in WIDE_SCHEDULES),
    Case(everything(1001), 1001, DType.FP16),
    Case(ALL_AXES, 1001),
    Case(ALL_AXES, 7),
)
EXACT = (
    *(Case(BARE, 333, schedule=s, a_major=a, b_major=b) for a, b, s in zip(
        (Major.K, Major.MN, Major.MN), (Major.MN, Major.MN, Major.K), SCHEDULES, strict=True)),
    *(Case(p, 333) for p in (*ROW_PLAIN[:2], *COLUMN_PLAIN[:2])),
    Case(DIFFERENCE, 333),
)  # fmt: skip


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 136)):
        t = make_tensors(case, m, k)
        check(t, run_op(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (257, 40)):
        t = make_tensors(case, m, k, integers=True)
        check_exact(t, run_op(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", CLOSE[3:4], ids=str)
def test_slices(case: Case, kernels) -> None:
    """Operands and outputs whose rows are an odd number of elements apart, at odd addresses."""
    t = make_tensors(case, 257, 72)
    wide = [x.new_zeros(x.shape[0], x.shape[1] + 5) for x in t.operands if x.dim() == 2 and x.shape[1] > 1]
    slices = iter(wide)
    moved = []
    for x in t.operands:
        if x.dim() == 2 and x.shape[1] > 1:
            place = next(slices)[:, 3:-2]
            place.copy_(x)
            moved.append(place)
        else:
            moved.append(x)
    t.operands = tuple(moved)
    check(t, run_op(kernels, t, {"y": "slice", "square": "slice"}))
