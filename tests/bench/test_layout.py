"""Where the bench's own launches say that elements lie is where torch has them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench import layout
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Major, Space
from comfuse.library import abi

N, M, BATCHES = 40, 6, 3


def spec(*, batched: bool = False, heads: int | None = None) -> FusedSpec:
    """An (M, N) and an (M,) output."""
    b = SpecBuilder(N, 16, DType.BF16, batched=batched)
    x = b.gemm()
    b.output("y", x, DType.FP32, strided=heads is not None, heads=heads)
    b.output("sums", b.op("row_sum", x), DType.FP32)
    return b.spec()


def numbered(*size: int) -> Tensor:
    """Each element holds its place in memory."""
    return torch.arange(torch.Size(size).numel()).reshape(size)


def place(t: abi.Tensor, base: Tensor, batch: int, m: int, n: int) -> int:
    """Of an element, as csrc/include/comfuse/abi.h has it."""
    row = m // t.row_period * t.row_outer + m % t.row_period * t.stride
    column = n // t.column_period * t.column_outer + n % t.column_period * t.column_stride
    first = (t.data - base.data_ptr()) // base.element_size()
    outer = batch // t.batch_period * t.batch_outer
    return first + outer + batch % t.batch_period * t.batch_stride + row + column


def check(t: abi.Tensor, base: Tensor, tiles: Tensor) -> None:
    """``tiles`` (batch, M, N), a view of ``base``."""
    for batch in range(tiles.shape[0]):
        for m in range(tiles.shape[1]):
            for n in range(tiles.shape[2]):
                assert place(t, base, batch, m, n) == tiles[batch, m, n], (batch, m, n)


@pytest.mark.parametrize("rows", [(M,), (2, M // 2), (1, M), (1,)])
def test_a_tile_of_any_leading_sizes(rows: tuple[int, ...]) -> None:
    x = numbered(*rows, N)
    check(layout.output(spec(), 0, x), x, x.reshape(1, -1, N))
    base = numbered(*rows, N + 8)
    part = base[..., 8:]
    check(layout.operand(spec(), Space.TILE, part, M), base, part.reshape(1, -1, N))


def test_rows_that_are_repeated() -> None:
    base = numbered(M // 2, N)
    x = base.expand(2, M // 2, N)
    check(layout.operand(spec(), Space.TILE, x, M), base, x.reshape(1, M, N))


def test_batches() -> None:
    base = numbered(BATCHES, M + 1, N)
    x = base[:, 1:]
    check(layout.operand(spec(batched=True), Space.TILE, x, M), base, x)
    shared = layout.operand(spec(batched=True), Space.TILE, x[0], M)
    assert shared.batch_stride == 0
    check(shared, base, x[:1])


@pytest.mark.parametrize("repeated", [(), (0,), (1,), (0, 1), (2,), (1, 2)])
def test_batches_in_two_levels(repeated: tuple[int, ...]) -> None:
    """(sequences, heads, M, N) as attention has it, of which some dimensions repeat."""
    sizes = [2, M, BATCHES, N]
    for dim in repeated:
        sizes[(0, 2, 1)[dim]] = 1
    base = numbered(*sizes)
    x = base.transpose(1, 2).expand(2, BATCHES, M, N)
    check(layout.operand(spec(batched=True), Space.TILE, x, M), base, x.reshape(-1, M, N))
    if 2 not in repeated:
        factor = layout.factor(spec(batched=True), Major.K, x)
        factor.row_period, factor.column_stride, factor.column_period = M, 1, N  # what it does not say
        check(factor, base, x.reshape(-1, M, N))


def test_columns_that_are_far_apart_and_heads() -> None:
    base = numbered(N, M)
    check(layout.output(spec(), 0, base.t()), base, base.t()[None])
    base = numbered(2, N // 8, M // 2, 8)
    check(layout.output(spec(heads=8), 0, base), base, base.transpose(1, 2).reshape(1, M, N))
    base = numbered(BATCHES, N // 8, M, 8)
    tiles = base.transpose(1, 2).reshape(BATCHES, M, N)
    check(layout.output(spec(batched=True, heads=8), 0, base), base, tiles)


@pytest.mark.parametrize("batched", [False, True])
def test_column_vectors(batched: bool) -> None:
    rows = (BATCHES, M) if batched else (M,)
    x = numbered(*rows, 2)[..., 0]
    for t in (
        layout.output(spec(batched=batched), 1, x),
        layout.operand(spec(), Space.COLUMN, x[..., None], M),
    ):
        assert t.stride == 2
    t = layout.operand(spec(batched=batched), Space.COLUMN, x, M)
    assert (t.stride, t.batch_stride) == (2, 2 * M if batched else 0)


@pytest.mark.parametrize("major", list(Major))
@pytest.mark.parametrize("batched", [False, True])
def test_factors(major: Major, batched: bool) -> None:
    base = numbered(BATCHES, M, 24) if batched else numbered(M, 24)
    x = base[..., :16]
    t = layout.factor(spec(batched=batched), major, x.mT if major is Major.MN else x)
    assert (t.stride, t.batch_stride) == (24, M * 24 if batched else 0)


def test_three_strides_are_too_many() -> None:
    x = numbered(3, 4, 5, N)[:, :2, :3]
    with pytest.raises(ValueError, match="cannot be walked with 2 strides"):
        layout.operand(spec(), Space.TILE, x, 18)
