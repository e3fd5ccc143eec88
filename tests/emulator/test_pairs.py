"""Kernels whose threads work on pairs of columns, where B cannot be permuted, on an emulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comfuse.generator.spec import DType, Major, Space
from tests.emulator.cases import kernel_of, launched
from tests.gpu.algebra import Algebra, Program
from tests.gpu.compare import check_exact
from tests.gpu.support import Case, make_tensors

FP32, TILE, ROW, COLUMN = DType.FP32, Space.TILE, Space.ROW, Space.COLUMN
_OPERANDS = (("x", TILE, None), ("y", TILE, None), ("shift", ROW, FP32), ("scale", COLUMN, FP32))


def _all_ways(a: Algebra, acc: Any, x: Any, y: Any, shift: Any, scale: Any) -> tuple[Any, ...]:
    z = a.add(a.add(a.mul(a.relu(acc), x), y), a.add(shift, scale))
    place = a.add(a.mul(a.row_index(), a.const(256.0)), a.column_index())
    return acc, a.sub(z, a.row_max(z)), place, a.row_sum(y), a.col_sum(acc)


def _tiles(a: Algebra, acc: Any, x: Any, y: Any, shift: Any, scale: Any) -> tuple[Any, ...]:
    return a.add(a.mul(a.relu(acc[0]), x), acc[1]), a.add(a.add(y, acc[0]), a.mul(shift, scale))


ALL_WAYS = Program(
    "all_ways",
    _all_ways,
    _OPERANDS,
    (("acc", None), ("less_max", FP32), ("place", FP32), ("row", FP32), ("column", FP32)),
)
TILES = Program("tiles", _tiles, _OPERANDS, (("first", None), ("second", FP32)), products=2)
#: A tile a row, which its reductions need; batches, whose B is K-major.
CASES = (
    (Case(ALL_WAYS, 128, schedule="pingpong-128x128", cluster_n=1, b_major=Major.MN), ((1,), (321,))),
    (
        Case(TILES, 128, DType.FP16, schedule="pingpong-128x64", cluster_n=1, batched=True),
        ((3, 1), (2, 200)),
    ),
)


@pytest.mark.parametrize("case, leads", CASES, ids=["n_contiguous", "batched"])
def test_whole_numbers_are_exact(
    case: Case, leads: tuple[tuple[int, ...], ...], tmp_path: Path, include: Path
) -> None:
    kernel = kernel_of(case, tmp_path, include)
    for seed, lead in enumerate(leads):
        t = make_tensors(case, lead, 136, integers=True, seed=seed, device="cpu", shared=("x", "scale"))
        check_exact(t, launched(kernel, t, seed=seed).tiles, str(lead))
