"""Batches, two products, groups, column and full reductions, and the shapes of operands and outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from comfuse import reference
from comfuse.errors import ArgumentError
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, Space

F32, N, K = DType.FP32, 24, 16


def randn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def run(b: SpecBuilder, a: Tensor, w: Tensor | list[Tensor], *operands: Tensor) -> list[Tensor]:
    return reference.evaluate(b.spec(), a, w, operands, dtype=torch.float64, round_outputs=False)


def test_two_products_share_a() -> None:
    b = SpecBuilder(N, K, F32, products=2)
    up = b.gemm(1)
    b.output("y", b.op("mul", b.op("silu", b.gemm(0)), up), F32)
    a, gate, up = randn(5, K), randn(N, K), randn(N, K) + 1
    (y,) = run(b, a, [gate, up])
    torch.testing.assert_close(y, torch.nn.functional.silu(a @ gate.t()) * (a @ up.t()))
    with pytest.raises(ArgumentError, match="b is 1 tensors; allowed: 2 tensors"):
        run(b, a, gate)


def test_strides_of_a_and_b_do_not_matter() -> None:
    b = SpecBuilder(N, K, F32)
    b.output("y", b.gemm(), F32)
    a, w = randn(K, 5).t(), randn(K, N).t()
    torch.testing.assert_close(run(b, a, w)[0], a @ w.t())


@pytest.mark.parametrize("shared", [False, True])
def test_batches_with_their_own_or_shared_operands(shared: bool) -> None:
    b = SpecBuilder(N, K, F32, batched=True)
    scaled = b.op("mul", b.gemm(), b.load("scale", Space.COLUMN))
    x = b.op("add", b.op("add", scaled, b.load("bias", Space.ROW)), b.load("residual", Space.TILE))
    b.output("y", b.op("mul", x, b.row_index()), F32)
    b.output("peak", b.op("row_max", x), F32)
    lead = () if shared else (3,)
    a, w = randn(3, 5, K), randn(*lead, N, K)
    scale, bias, residual = randn(*lead, 5), randn(*lead, N), randn(*lead, 5, N)
    x = (a @ w.mT) * scale[..., None] + (bias if shared else bias[:, None]) + residual
    for columns in (scale, scale[..., None]):
        for rows in (bias, bias.unsqueeze(-2)):
            y, peak = run(b, a, w, columns, rows, residual)
            torch.testing.assert_close(y, x * torch.arange(5.0)[:, None])
            torch.testing.assert_close(peak, x.amax(-1))


@pytest.mark.parametrize(
    "name, a, operands",
    [
        ("a", (5, K), [(5,), (N,)]),
        ("scale", (3, 5, K), [(15,), (N,)]),
        ("bias", (3, 5, K), [(5,), (3 * N,)]),
    ],
)
def test_batched_arguments_of_the_wrong_shape_are_named(
    name: str, a: tuple[int, ...], operands: list[tuple[int, ...]]
) -> None:
    b = SpecBuilder(N, K, F32, batched=True)
    b.output(
        "y", b.op("add", b.op("mul", b.gemm(), b.load("scale", Space.COLUMN)), b.load("bias", Space.ROW)), F32
    )
    with pytest.raises(ArgumentError) as caught:
        run(b, randn(*a), randn(N, K), *(randn(*shape) for shape in operands))
    assert caught.value.argument == name


def test_groups_of_columns() -> None:
    """RMSNorm per head, with the scale stored."""
    b = SpecBuilder(N, K, F32, group=8)
    x = b.gemm()
    mean_square = b.op("mul", b.op("group_sumsq", x), b.const(1 / 8))
    scale = b.op("rsqrt", b.op("add", mean_square, b.load("shift", Space.COLUMN)))
    b.output("y", b.op("mul", b.op("mul", x, scale), b.load("weight", Space.ROW)), F32)
    b.output("scale", scale, F32)
    a, w, shift, weight = randn(2, 5, K), randn(N, K), randn(10) ** 2, randn(N)
    y, got = run(b, a, w, shift, weight)
    heads = (a @ w.t()).unflatten(-1, (3, 8))
    expected = torch.rsqrt(heads.square().mean(-1) + shift.view(2, 5, 1))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(y, (heads * expected[..., None]).flatten(-2) * weight)


@pytest.mark.parametrize("lead", [(7,), (2, 3), (0,)])
def test_column_and_full_reductions(lead: tuple[int, ...]) -> None:
    b = SpecBuilder(N, K, F32)
    x = b.op("relu", b.gemm())
    b.output("total", b.op("full_sum", x), F32)
    b.output("grad", b.op("col_sum", x), F32)
    b.output("mean", b.op("div", b.op("col_sum", x), b.row_count()), F32)
    b.output("var", b.field(b.op("col_welford", x), "var"), F32)
    a, w = randn(*lead, K), randn(N, K)
    total, grad, mean, var = run(b, a, w)
    x = (a @ w.t()).relu().reshape(-1, N)
    torch.testing.assert_close(total, x.sum())
    torch.testing.assert_close(grad, x.sum(0))
    torch.testing.assert_close(mean, x.mean(0), equal_nan=True)
    torch.testing.assert_close(var, (x - x.mean(0)).square().mean(0), equal_nan=True)


def test_column_feedback() -> None:
    """BatchNorm in training."""
    b = SpecBuilder(N, K, F32)
    x = b.gemm()
    stats = b.op("col_welford", x)
    rstd = b.op("rsqrt", b.op("add", b.field(stats, "var"), b.const(1e-5)))
    b.output("y", b.op("mul", b.op("sub", x, b.field(stats, "mean")), rstd), F32)
    a, w = randn(9, K), randn(N, K)
    torch.testing.assert_close(
        run(b, a, w)[0], torch.nn.functional.batch_norm(a @ w.t(), None, None, training=True, eps=1e-5)
    )


def test_a_strided_operand_broadcasts_over_rows() -> None:
    b = SpecBuilder(N, K, F32)
    b.output("y", b.op("add", b.gemm(), b.load("position", Space.TILE, strided=True)), F32)
    a, w = randn(3, 5, K), randn(N, K)
    for shape in ((5, N), (1, 5, N), (3, 1, N), (3, 5, N), (15, N), (N,)):
        position = randn(*shape)
        expected = (a @ w.t()) + (position.view(3, 5, N) if shape == (15, N) else position)
        torch.testing.assert_close(run(b, a, w, position)[0], expected)
    with pytest.raises(ArgumentError, match="position"):
        run(b, a, w, randn(3, N))


@pytest.mark.parametrize("batched", [False, True])
def test_heads_come_before_rows(batched: bool) -> None:
    b = SpecBuilder(N, K, F32, batched=batched)
    b.output("q", b.gemm(), F32, heads=8)
    a, w = randn(2, 5, K), randn(N, K)
    (q,) = run(b, a, w)
    torch.testing.assert_close(q, (a @ w.t()).view(2, 5, 3, 8).transpose(1, 2))
    assert q.is_contiguous()


def test_heads_of_one_row_are_refused() -> None:
    b = SpecBuilder(N, K, F32)
    b.output("q", b.gemm(), F32, heads=8)
    with pytest.raises(ArgumentError, match="split in heads"):
        run(b, randn(K), randn(N, K))


def test_operands_and_outputs_of_every_dtype() -> None:
    b = SpecBuilder(4, K, F32)
    x = b.gemm()
    mask = b.load("mask", Space.TILE, DType.BOOL)
    index = b.load("target", Space.COLUMN, DType.INT64)
    picked = b.op("eq", b.column_index(), index)
    b.output("dropped", b.op("where", mask, x, b.const(0.0)), DType.INT8)
    b.output("picked", picked, DType.BOOL)
    b.output("best", b.op("row_argmax", x), DType.INT64)
    b.output("scaled", b.op("mul", x, b.load("scale", Space.ROW, DType.E5M2)), DType.E4M3)
    a, w = torch.zeros(2, K), torch.zeros(4, K)
    a[:, 0] = torch.tensor([1.0, 2.0])
    w[:, 0] = torch.tensor([1.0, -70.5, 100.0, 100.0])
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    scale = torch.tensor([1.0, 2.0, 4.0, 8.0]).to(torch.float8_e5m2)
    dropped, chosen, best, scaled = reference.evaluate(b.spec(), a, w, [mask, torch.tensor([3, 0]), scale])
    assert dropped.dtype is torch.int8
    assert dropped.tolist() == [[1, -70, 100, 0], [2, -128, 127, 127]]
    assert chosen.tolist() == [[False, False, False, True], [True, False, False, False]]
    assert best.tolist() == [2, 2]
    assert best.dtype is torch.int64
    assert scaled.float().tolist() == [[1.0, -144.0, 384.0, 448.0], [2.0, -288.0, 448.0, 448.0]]
