"""The torch evaluation of specs: whole programs against torch's own functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import reference
from comfuse.errors import ArgumentError
from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, Space


def inputs(lead: tuple[int, ...], n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(*lead, k), torch.randn(n, k), torch.randn(n), torch.randn(*lead, n)


@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layernorm(lead: tuple[int, ...], dtype: torch.dtype) -> None:
    x, w, bias, residual = inputs(lead, 24, 16)
    f32 = DType.FP32
    spec = catalog.layernorm(24, 16, f32, bias=f32, residual=f32, ln_weight=f32, ln_bias=f32)
    (y,) = reference.evaluate(
        spec, x, w, [bias, residual, bias, bias], [1e-5], dtype=dtype, round_outputs=False
    )
    x, w, bias, residual = (t.to(dtype) for t in (x, w, bias, residual))
    expected = F.layer_norm(x @ w.t() + bias + residual, (24,), bias, bias)
    assert y.dtype == dtype
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("lead", [(7,), (2, 3)])
def test_several_outputs_and_columns(lead: tuple[int, ...]) -> None:
    x, w, _, residual = inputs(lead, 24, 16)
    b = SpecBuilder(24, 16, DType.FP32)
    h = b.op("mul", b.gemm(), b.load("scale", Space.COLUMN))
    peak = b.op("row_max", h)
    b.output("peak", peak, DType.FP32)
    b.output("y", b.op("add", b.op("sub", h, peak), b.load("residual", Space.TILE)), DType.BF16)
    scale = residual[..., 0]
    h_expected = (x @ w.t()) * scale[..., None]
    for column in (scale, scale[..., None], scale.flatten()):
        peak_got, y = reference.evaluate(b.spec(), x, w, [column, residual])
        torch.testing.assert_close(peak_got, h_expected.amax(-1))
        expected = h_expected - h_expected.amax(-1, keepdim=True) + residual
        torch.testing.assert_close(y, expected.bfloat16())


def test_one_column_is_not_a_column_vector() -> None:
    b = SpecBuilder(1, 8, DType.FP32)
    acc = b.gemm()
    b.output("y", acc, DType.FP32)
    b.output("total", b.op("row_sum", acc), DType.FP32)
    y, total = reference.evaluate(b.spec(), torch.ones(3, 8), torch.ones(1, 8))
    assert y.shape == (3, 1)
    assert total.shape == (3,)


def test_values_are_rounded_once() -> None:
    """A residual that cancels the GEMM leaves what bfloat16 would have rounded away."""
    a, w = torch.full((1, 8), 1.0).bfloat16(), torch.full((8, 8), 1.0).bfloat16()
    residual = torch.full((1, 8), -8.0 + 2**-12)
    spec = catalog.linear(8, 8, DType.BF16, residual=DType.FP32)
    (y,) = reference.evaluate(spec, a, w, [residual])
    assert torch.all(y == 2**-12)


def test_nothing_to_multiply_gives_zeros() -> None:
    spec = catalog.linear(8, 0, DType.BF16, bias=DType.FP32)
    bias = torch.arange(8.0)
    (y,) = reference.evaluate(spec, torch.zeros(3, 0).bfloat16(), torch.zeros(8, 0).bfloat16(), [bias])
    torch.testing.assert_close(y, bias.bfloat16().expand(3, 8))


def test_autocast_does_not_reach_in() -> None:
    x, w, _, _ = inputs((5,), 24, 16)
    spec = catalog.linear(24, 16, DType.FP32)
    with torch.autocast("cpu", torch.bfloat16):
        (y,) = reference.evaluate(spec, x, w)
    torch.testing.assert_close(y, x @ w.t())


def test_differentiable() -> None:
    x, w, bias, residual = inputs((5,), 24, 16)
    w.requires_grad_()
    f32 = DType.FP32
    spec = catalog.rmsnorm(24, 16, f32, residual=f32, rms_weight=f32)
    (y,) = reference.evaluate(spec, x, w, [residual, bias], [1e-6, 0.0])
    (got,) = torch.autograd.grad(y.sum(), w)
    (expected,) = torch.autograd.grad(F.rms_norm(x @ w.t() + residual, (24,), bias, 1e-6).sum(), w)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "operands, scalars, argument",
    [([], [1e-5], "operands"), ([torch.ones(24)], [], "scalars"), ([torch.ones(23)], [1e-5], "bias")],
)
def test_wrong_arguments_are_named(operands: list[Tensor], scalars: list[float], argument: str) -> None:
    x, w, _, _ = inputs((5,), 24, 16)
    spec = catalog.layernorm(24, 16, DType.FP32, bias=DType.FP32)
    with pytest.raises(ArgumentError) as caught:
        reference.evaluate(spec, x, w, operands, scalars)
    assert caught.value.argument == argument
