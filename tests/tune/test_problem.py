"""Inputs, reference and check: of right results, and of every kind of wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse.errors import WrongResultError
from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.catalog import Layouts
from comfuse.generator.spec import DType, FusedSpec, Major, Space
from comfuse.reference import evaluate
from comfuse.tune import problem as module
from comfuse.tune.problem import Problem
from tests.tune.fake import launch

BF16, FP32 = DType.BF16, DType.FP32
NORM = catalog.layernorm(256, 64, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16)


def heads() -> FusedSpec:
    b = SpecBuilder(64, 32, BF16)
    b.output("y", b.op("relu", b.gemm()), BF16, strided=True, heads=16)
    return b.spec()


def statistics() -> FusedSpec:
    """Sums of rows, of columns, of everything; where each row's largest element is."""
    b = SpecBuilder(64, 32, BF16)
    x = b.op("mul", b.gemm(), b.load("scale", Space.COLUMN, FP32))
    b.output("rows", b.op("row_sum", x), FP32)
    b.output("columns", b.op("col_sum", x), FP32)
    b.output("all", b.op("full_max", x), FP32)
    b.output("positive", b.op("gt", x, b.const(0.0)), DType.BOOL)
    return b.spec()


SPECS = {
    "layernorm": NORM,
    "fp16": catalog.layernorm(256, 64, DType.FP16, bias=FP32),
    "softmax": catalog.softmax(128, 64, BF16),
    "cross entropy": catalog.cross_entropy(128, 64, BF16),
    "gated": catalog.gated(128, 64, BF16),
    "two factors": catalog.middle_gradient(128, 64, 40, BF16, b0=BF16, activation="gelu", sums=True),
    "its rows in blocks": catalog.middle_gradient(128, 64, 40, BF16, activation="silu"),
    "quantised": catalog.quantize(128, 64, BF16),
    "heads": heads(),
    "statistics": statistics(),
    "a contiguous along M": catalog.linear(128, 64, BF16, layouts=Layouts(a=Major.MN, b=Major.MN)),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_float32_reference_is_right(name: str) -> None:
    checked = (p := Problem.of(SPECS[name], (300,), "cpu")).check(launch(p))
    assert 0 <= checked.error <= checked.allowed < 0.1


def test_a_batched_program_is_right() -> None:
    spec = catalog.softmax(128, 64, BF16, layouts=Layouts(batched=True))
    p = Problem.of(spec, (3, 70), "cpu")
    assert p.a.shape == (3, 70, 64)
    p.check(launch(p))


def test_the_reference_is_what_torch_computes_in_float64() -> None:
    p = Problem.of(NORM, (300,), "cpu")
    bias, residual, weight, shift = (
        p.operands[[o.name for o in NORM.operands].index(name)].double()
        for name in ("bias", "residual", "ln_weight", "ln_bias")
    )
    h = p.a.double() @ p.b[0].double().T + bias + residual
    torch.testing.assert_close(p.reference[0], F.layer_norm(h, (256,), weight, shift, p.scalars[0]))


@pytest.mark.parametrize("name", SPECS)
def test_the_reference_in_blocks_of_rows_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Problem.of(SPECS[name], (300,), "cpu")
    monkeypatch.setattr(module, "_ELEMENTS", 70 * SPECS[name].n)
    blocks = Problem.of(SPECS[name], (300,), "cpu")
    for one, other in zip(whole.reference, blocks.reference, strict=True):
        torch.testing.assert_close(one, other)
    assert blocks.allowed == pytest.approx(whole.allowed, rel=1e-6)


def test_inputs_are_the_same_each_time() -> None:
    one, other = Problem.of(NORM, (40,), "cpu"), Problem.of(NORM, (40,), "cpu")
    assert torch.equal(one.a, other.a)
    assert all(map(torch.equal, one.operands, other.operands))


def _scaled(y: Tensor) -> None:
    y.mul_(1.01)


def _row(y: Tensor) -> None:
    y[-1] = y[0]


def _not_a_number(y: Tensor) -> None:
    y[17, 3] = float("nan")


def _zeros(y: Tensor) -> None:
    y[128:256].zero_()


@pytest.mark.parametrize("spoil", [_scaled, _row, _not_a_number, _zeros])
def test_wrong_values_are_found(spoil: Callable[[Tensor], None]) -> None:
    p = Problem.of(NORM, (300,), "cpu")
    with pytest.raises(WrongResultError, match=r"output y: error .* against float64, .* allowed"):
        p.check(launch(p, spoil))


def test_one_element_that_is_not_written_is_found() -> None:
    p = Problem.of(NORM, (300,), "cpu")

    def call(outputs: list[Tensor]) -> None:
        before = outputs[0][299, 255].clone()
        launch(p)(outputs)
        outputs[0][299, 255] = before

    with pytest.raises(WrongResultError, match="output y: 2 bytes are not written"):
        p.check(call)


def test_results_that_differ_from_run_to_run_are_found() -> None:
    p, runs = Problem.of(NORM, (300,), "cpu"), []

    def call(outputs: list[Tensor]) -> None:
        runs.append(1)
        launch(p)(outputs)
        outputs[0][5, 5] *= 1 + 0.01 * len(runs)

    with pytest.raises(WrongResultError, match="are others the second time"):
        p.check(call)


def test_the_second_output_is_checked_too() -> None:
    p = Problem.of(statistics(), (300,), "cpu")

    def call(outputs: list[Tensor]) -> None:
        launch(p)(outputs)
        outputs[3].logical_not_()

    with pytest.raises(WrongResultError, match="output positive"):
        p.check(call)


def test_what_float32_itself_cannot_compute_is_allowed_twice() -> None:
    """A sum that cancels: the bound is the float32 reference's error, and no more than twice it."""
    b = SpecBuilder(64, 32, BF16)
    x = b.op("add", b.gemm(), b.const(3e4))
    b.output("y", b.op("sub", x, b.const(3e4)), FP32)
    p = Problem.of(b.spec(), (300,), "cpu")
    assert p.allowed[0] > 1e-4
    p.check(launch(p))
    exact = evaluate(p.spec, p.a, p.b, p.operands, p.scalars, dtype=torch.float64)[0]
    with pytest.raises(WrongResultError):
        p.check(lambda outputs: outputs[0].copy_(exact + 3 * p.allowed[0]))


def test_the_bound_is_one_rounding_for_what_float32_computes_well() -> None:
    p = Problem.of(NORM, (300,), "cpu")
    assert p.allowed[0] == pytest.approx(2**-9 + 4e-5, rel=0.01)
    exact = p.reference[0]
    twice = exact.bfloat16().double() * (1 + 2**-9 * torch.randn(exact.shape, dtype=torch.float64))
    with pytest.raises(WrongResultError):
        p.check(lambda outputs: outputs[0].copy_(twice))


@pytest.mark.parametrize("dtype, factor", [(DType.E4M3, 1000.0), (DType.FP16, 1e5), (DType.E5M2, 1e5)])
def test_values_beyond_the_range_are_right_as_they_are_stored(dtype: DType, factor: float) -> None:
    b = SpecBuilder(64, 32, BF16)
    b.output("y", b.op("mul", b.gemm(), b.const(factor)), dtype)
    p = Problem.of(b.spec(), (300,), "cpu")
    assert bool((p.reference[0].abs() == (448.0 if dtype is DType.E4M3 else float("inf"))).any())
    p.check(launch(p))


def test_the_bound_follows_the_dtype_of_the_output() -> None:
    wide = replace(NORM, outputs=tuple(replace(o, dtype=FP32) for o in NORM.outputs))
    assert Problem.of(wide, (300,), "cpu").allowed[0] < Problem.of(NORM, (300,), "cpu").allowed[0] / 10
