"""Operands that are not plain floats in plain rows: repeated over a part of the rows, bools, integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comfuse.generator.spec import DType, Space
from tests.gpu.algebra import Algebra, Out, Program
from tests.gpu.compare import check, check_exact, same_bits
from tests.gpu.reductions import SCHEDULES, WIDE_SCHEDULES
from tests.gpu.support import Case, make_tensors, run_op

pytestmark = pytest.mark.gpu

TILE, ROW, COLUMN = Space.TILE, Space.ROW, Space.COLUMN


def _positions(a: Algebra, acc: Any, position: Any, residual: Any) -> tuple[Any, Any]:
    x = a.add(a.add(acc, position), residual)
    mean = a.field(a.row_welford(x), "mean")
    return a.sub(x, mean), mean


POSITIONS = Program(
    "positions",
    _positions,
    (("position", TILE, None, True), ("residual", TILE, None)),
    (Out("y"), Out("mean", DType.FP32)),
)


def _integers(a: Algebra, acc: Any, *operands: Any) -> tuple[Any, ...]:
    """A dropout mask, tiles of bytes, a table's row numbers and each row's label."""
    keep, signed, unsigned, offset, label = operands
    x = a.where(keep, a.add(acc, a.mul(signed, unsigned)), a.const(0.0))
    x = a.add(x, offset)
    at_label = a.where(a.eq(a.column_index(), label), x, a.const(0.0))
    return x, a.row_sum(at_label), a.add(a.row_index(), a.row_max(x))


INTEGERS = Program(
    "integers",
    _integers,
    (
        ("keep", TILE, DType.BOOL), ("signed", TILE, DType.INT8), ("unsigned", TILE, DType.UINT8),
        ("offset", ROW, DType.INT32), ("label", COLUMN, DType.INT64),
    ),
    (Out("y", DType.FP32), Out("at_label", DType.FP32), Out("largest", DType.FP32)),
)  # fmt: skip


def _wide_integers(a: Algebra, acc: Any, words: Any, longs: Any, flags: Any, half: Any) -> tuple[Any, ...]:
    x = a.add(a.add(acc, words), longs)
    return a.add(x, a.mul(a.logical_not(flags), half)), a.row_sum(a.ne(longs, a.const(0.0)))


WIDE_INTEGERS = Program(
    "wide_integers",
    _wide_integers,
    (
        ("words", TILE, DType.INT32), ("longs", TILE, DType.INT64),
        ("flags", ROW, DType.BOOL), ("half", ROW, DType.E5M2),
    ),
    (Out("y", DType.FP32), Out("count", DType.INT32)),
)  # fmt: skip

REPEATED = tuple(Case(POSITIONS, 200, schedule=s) for s in SCHEDULES)
EXACT = (
    *(Case(p, 208, schedule=s) for p in (INTEGERS, WIDE_INTEGERS) for s in WIDE_SCHEDULES),
    *(Case(p, 333) for p in (INTEGERS, WIDE_INTEGERS)),
)


@pytest.mark.parametrize("period", [1, 100, 128])
@pytest.mark.parametrize("case", REPEATED, ids=str)
def test_rows_repeat(case: Case, period: int, kernels) -> None:
    """Position embeddings: row m of the batch adds row m % period of the table, which is not copied."""
    for repeats in (1, 7):
        t = make_tensors(case, (repeats, period), 72)
        assert t.operands[0].stride(0) == 0 or repeats == 1
        check(t, run_op(kernels, t), f"{repeats} x {period}")


@pytest.mark.parametrize("case", REPEATED[:1], ids=str)
def test_rows_in_two_levels_of_strides(case: Case, kernels) -> None:
    """The transpose of a (period, repeats, N) tensor, at an odd address, is read in place as well."""
    t = make_tensors(case, (9, 50), 72)
    expected = run_op(kernels, t)
    position, residual = t.operands
    wide = torch.full((50, 9, 207), float("nan"), device=position.device, dtype=position.dtype)
    moved = wide.transpose(0, 1)[..., 3:203]
    moved.copy_(position)
    t.operands = (moved, residual)
    for x, y in zip(expected, run_op(kernels, t), strict=True):
        assert same_bits(x, y)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_integers_and_bools(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (257, 40)):
        t = make_tensors(case, m, k, integers=True)
        check_exact(t, run_op(kernels, t), f"M = {m}, K = {k}")
