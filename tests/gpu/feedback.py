"""Programs whose tiles read column reductions: one kernel for as many rows as run at once."""

from __future__ import annotations

from typing import Any

from comfuse.generator.spec import DType, Space
from tests.gpu.algebra import Algebra, Out, Program

TILE, ROW, SCALAR, FP32 = Space.TILE, Space.ROW, Space.SCALAR, DType.FP32


def _batch_norm(
    a: Algebra, acc: Any, residual: Any, weight: Any, running: Any, eps: Any, momentum: Any
) -> tuple[Any, ...]:
    """In training: the result, what a backward reads, and the running mean."""
    x = a.add(acc, residual)
    stats = a.col_welford(x)
    mean, rstd = a.field(stats, "mean"), a.rsqrt(a.add(a.field(stats, "var"), eps))
    y = a.mul(a.mul(a.sub(x, mean), rstd), weight)
    moved = a.add(running, a.mul(momentum, a.sub(mean, running)))
    return y, mean, rstd, moved


BATCH_NORM = Program(
    "batch_norm",
    _batch_norm,
    (
        ("residual", TILE, None), ("weight", ROW, None), ("running", ROW, FP32),
        ("eps", SCALAR), ("momentum", SCALAR),
    ),
    (Out("y"), Out("mean", FP32), Out("rstd", FP32), Out("moved", FP32)),
    scalars=(1e-5, 0.1),
)  # fmt: skip


def _softmax(a: Algebra, acc: Any, bias: Any) -> tuple[Any, ...]:
    """Over the rows: the largest entries are exchanged, then the sums of what they shift."""
    x = a.add(acc, bias)
    largest = a.col_max(x)
    e = a.exp(a.sub(x, largest))
    total = a.col_sum(e)
    return a.div(e, total), largest, total


COLUMN_SOFTMAX = Program(
    "column_softmax",
    _softmax,
    (("bias", ROW, None),),
    (Out("y"), Out("largest", FP32), Out("total", FP32)),
)


def _all_ways(a: Algebra, acc: Any, residual: Any) -> tuple[Any, ...]:
    """Rows and columns that tiles wait for side by side; behind them a column, a row and a total to store."""
    x = a.add(acc, residual)
    y = a.add(a.sub(x, a.col_max(x)), a.add(a.row_min(x), a.col_min(x)))
    return y, a.col_sum(y), a.row_max(y), a.full_max(x)


ALL_WAYS = Program(
    "all_ways",
    _all_ways,
    (("residual", TILE, None),),
    (Out("y", FP32), Out("sums", FP32), Out("largest", FP32), Out("total", FP32)),
)
