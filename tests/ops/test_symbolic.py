"""Calls with symbolic sizes, as torch.compile traces them: the rules pass and add no guards."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from comfuse.errors import ShapeError
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, Space
from comfuse.ops.schema import GENERAL

N, K = 64, 32


def _spec(*, batched: bool = False, strided: bool = False) -> str:
    """A product with a row, a tile and a column added."""
    b = SpecBuilder(N, K, DType.BF16, batched=batched)
    y = b.op("add", b.gemm(), b.load("row", Space.ROW, DType.BF16))
    y = b.op("add", y, b.load("tile", Space.TILE, DType.BF16, strided=strided))
    y = b.op("mul", y, b.load("column", Space.COLUMN, DType.BF16))
    b.output("y", y, DType.BF16)
    b.output("sums", b.op("row_sum", y), DType.FP32)
    return b.spec().text()


def _symbolic(mode: FakeTensorMode, *shape: int) -> torch.Tensor:
    """A tensor whose sizes but the last are symbols."""
    sizes = [DimDynamic.DYNAMIC] * (len(shape) - 1) + [DimDynamic.STATIC]
    context = StatelessSymbolicContext(dynamic_sizes=sizes)
    return mode.from_tensor(torch.empty(shape, dtype=torch.bfloat16), symbolic_context=context)


def _static(mode: FakeTensorMode, *shape: int) -> torch.Tensor:
    return mode.from_tensor(torch.empty(shape, dtype=torch.bfloat16), static_shapes=True)


@pytest.mark.parametrize("flat_a", [False, True])
@pytest.mark.parametrize("flat_tile", [False, True])
@pytest.mark.parametrize("column", ["flat", "kept"])
def test_no_guard_for_rows_of_any_rank(flat_a, flat_tile, column):
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    a = _symbolic(mode, 2, 24, K)
    with mode:
        tile = a.new_empty((*a.shape[:-1], N))
        row, b = _static(mode, N), _static(mode, N, K)
        columns = {"flat": tile.reshape(-1, N)[:, 0], "kept": tile[..., :1]}
        guards = len(env.guards)
        y, sums = GENERAL(
            _spec(),
            a.reshape(-1, K) if flat_a else a,
            b,
            [row, tile.reshape(-1, N) if flat_tile else tile, columns[column]],
            [],
        )
    assert env.guards[guards:] == []
    rows = a.reshape(-1, K).shape[:-1] if flat_a else a.shape[:-1]
    assert y.shape == (*rows, N)
    assert sums.shape == rows


@pytest.mark.parametrize("strided", [False, True])
def test_no_guard_for_batches(strided):
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    a, b = _symbolic(mode, 3, 24, K), _static(mode, N, K)
    with mode:
        tile, row = a.new_empty((*a.shape[:-1], N)), _static(mode, N)
        guards = len(env.guards)
        y, _ = GENERAL(_spec(batched=True, strided=strided), a, b, [row, tile, tile[..., 0]], [])
    assert env.guards[guards:] == []
    assert y.shape == (*a.shape[:-1], N)


def test_symbols_that_cannot_be_equal_are_refused():
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    a = _symbolic(mode, 24, K)
    with mode:
        tile = a.new_empty((a.shape[0] + 1, N))
        with pytest.raises(ShapeError, match="tile"):
            GENERAL(_spec(), a, _static(mode, N, K), [_static(mode, N), tile, tile[:-1, 0]], [])
