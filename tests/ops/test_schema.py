"""The dispatcher ops: opcheck, the general form, typed errors, what importing does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from comfuse import fallbacks, ops, reference
from comfuse.errors import ArgumentError, DTypeError, GradientError, ShapeError, SpecError
from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Major, Space
from comfuse.ops.schema import ALONE, FIXED, GENERAL, MAX_FIXED

BF16 = DType.BF16
N, K = 24, 16


def sum_of(count: int, outputs: int = 1) -> FusedSpec:
    """A program with so many tensor operands and outputs, and one scalar."""
    b = SpecBuilder(N, K, BF16)
    y = b.op("mul", b.gemm(), b.load("scale", Space.SCALAR))
    for i in range(count):
        space = (Space.TILE, Space.ROW, Space.COLUMN)[i % 3]
        y = b.op("add", y, b.load(f"t{i}", space, BF16 if i % 2 else DType.FP32))
    b.output("y", y, BF16)
    for _ in range(outputs - 1):
        b.output("total", b.op("row_sum", y), DType.FP32)
    return b.spec()


def two_outputs() -> FusedSpec:
    b = SpecBuilder(N, K, BF16)
    acc = b.gemm()
    b.output("peak", b.op("row_max", acc), DType.FP32)
    b.output("y", acc, BF16)
    return b.spec()


def tensors(spec: FusedSpec, *lead: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = {Space.TILE: (*lead, spec.n), Space.ROW: (spec.n,), Space.COLUMN: (*lead, 1)}
    made = [torch.randn(*lead, spec.k).bfloat16(), torch.randn(spec.n, spec.k).bfloat16()]
    for operand in spec.operands:
        if operand.space is not Space.SCALAR:
            made.append(torch.randn(shapes[operand.space]).to(reference.TORCH_DTYPES[operand.dtype]))
    return made


@pytest.mark.parametrize("outputs", FIXED)
@pytest.mark.parametrize("count", range(MAX_FIXED + 1))
def test_opcheck_of_the_fixed_forms(count: int, outputs: int) -> None:
    spec = sum_of(count, outputs)
    torch.library.opcheck(FIXED[outputs][count], (spec.text(), *tensors(spec, 2, 3), 0.5))


@pytest.mark.parametrize("outputs", FIXED)
def test_the_fixed_forms_have_a_number_of_outputs(outputs: int) -> None:
    spec = sum_of(1, 3 - outputs)
    with pytest.raises(ArgumentError, match=f"outputs is a list of {outputs}; allowed: {3 - outputs}"):
        FIXED[outputs][1](spec.text(), *tensors(spec, 4), 0.5)


@pytest.mark.parametrize("lead", [(4,), (2, 3), ()])
def test_opcheck_of_the_general_form(lead: tuple[int, ...]) -> None:
    for spec, scalars in ((sum_of(3), [2.0]), (two_outputs(), [])):
        a, b, *operands = tensors(spec, *lead)
        torch.library.opcheck(GENERAL, (spec.text(), a, b, operands, scalars))


def test_opcheck_of_the_form_without_operands() -> None:
    """The only one that AOTInductor can call without any."""
    b = SpecBuilder(N, K, BF16)
    acc = b.op("mul", b.gemm(), b.load("scale", Space.SCALAR))
    for op in ("row_max", "row_sum", "col_sum"):
        b.output(op, b.op(op, acc), DType.FP32)
    spec = b.spec()
    x, w = tensors(spec, 2, 3)
    torch.library.opcheck(ALONE, (spec.text(), x, w, [0.5]))
    expected = GENERAL(spec.text(), x, w, [], [0.5])
    assert len(expected) == 3
    assert all(map(torch.equal, ops.region(spec.text(), x, w, [], [0.5]), expected))


def every_output(*, batched: bool = False) -> FusedSpec:
    """Two products, a strided operand, outputs of every space and dtype."""
    b = SpecBuilder(64, K, BF16, products=2, batched=batched, group=32)
    y = b.op("mul", b.gemm(0), b.op("sigmoid", b.gemm(1)))
    y = b.op("add", y, b.load("t", Space.TILE, BF16, strided=True))
    axes = ("row_max", "group_sum") if batched else ("row_max", "group_sum", "col_sum", "full_sum")
    for op in axes:
        b.output(op, b.op(op, y), DType.FP32)
    b.output("heads", y, DType.FP16, heads=16)
    for dtype in (DType.E4M3, DType.INT8, DType.BOOL):
        b.output(dtype.value, y, dtype)
    return b.spec()


@pytest.mark.parametrize("batched", [False, True])
def test_opcheck_of_every_kind_of_output(batched: bool) -> None:
    spec = every_output(batched=batched)
    a, b, b1 = torch.randn(2, 3, K).bfloat16(), torch.randn(64, K).bfloat16(), torch.randn(64, K).bfloat16()
    for t in (torch.randn(2, 3, 64).bfloat16(), torch.randn(3, 64).bfloat16(), torch.randn(64).bfloat16()):
        torch.library.opcheck(GENERAL, (spec.text(), a, b, [b1, t], []))


@pytest.mark.parametrize("a_major", Major)
@pytest.mark.parametrize("b_major", Major)
def test_opcheck_of_layouts(a_major: Major, b_major: Major) -> None:
    spec = catalog.linear(N, K, BF16, layouts=catalog.Layouts(a_major, b_major))
    a, b = torch.randn(K, 5).bfloat16().t(), torch.randn(K, N).bfloat16().t()
    torch.library.opcheck(FIXED[1][0], (spec.text(), a, b))
    assert torch.equal(ops.region(spec.text(), a, b)[0], ops.fused_gemm(a, b))


def test_region_is_traced_whole() -> None:
    for spec in (sum_of(2), sum_of(2, 2), every_output()):
        a, b, *rest = tensors(spec, 2, 3)
        if spec.products == 2:
            rest = [torch.randn(64, K).bfloat16(), *rest]
        text, scalars = spec.text(), [0.5] * (len(spec.operands) - len(rest) + spec.products - 1)
        torch.compiler.reset()
        compiled = torch.compile(ops.region, fullgraph=True, backend="aot_eager")
        for got, wanted in zip(
            compiled(text, a, b, rest, scalars), ops.region(text, a, b, rest, scalars), strict=True
        ):
            assert torch.equal(got.float(), wanted.float())


def test_opcheck_of_the_reference() -> None:
    spec = sum_of(2)
    a, b, *operands = tensors(spec, 5)
    torch.library.opcheck(torch.ops.comfuse.region_reference.default, (spec.text(), a, b, operands, [0.5]))
    assert {where for where, _ in fallbacks.counts()} == {"comfuse::region"}


@pytest.mark.parametrize(
    "spec", [sum_of(0), sum_of(3), sum_of(8), two_outputs()], ids=["0", "3", "8", "outputs"]
)
def test_region_takes_any_spec(spec: FusedSpec) -> None:
    a, b, *operands = tensors(spec, 2, 3)
    scalars = [0.5] * sum(operand.space is Space.SCALAR for operand in spec.operands)
    got = ops.region(spec.text(), a, b, operands, scalars)
    for y, expected in zip(got, reference.evaluate(spec, a, b, operands, scalars), strict=True):
        assert torch.equal(y, expected)
    assert not fallbacks.counts()


@pytest.mark.parametrize("count, outputs", [(1, 1), (1, 2), (7, 1)])
@pytest.mark.parametrize("of", range(3))
def test_a_spec_has_no_gradient(count: int, outputs: int, of: int) -> None:
    """A region by all three ways, with each kind of tensor requiring a gradient."""
    spec = sum_of(count, outputs)
    given = tensors(spec, 2)
    out = ops.region(spec.text(), *given[:2], given[2:], [1.0])
    given[of].requires_grad_()
    call = (spec.text(), *given[:2], given[2:], [1.0])
    with pytest.raises(GradientError, match=r"region: a tensor requires a gradient"):
        ops.region(*call)
    with pytest.raises(GradientError, match=r"region_out: a tensor requires a gradient"):
        ops.region_out(*call, out)
    with torch.no_grad():
        for y, expected in zip(ops.region(*call), out, strict=True):
            assert torch.equal(y, expected)
            assert not y.requires_grad


def test_types_and_numbers_are_checked() -> None:
    spec = catalog.layernorm(16, 8, DType.BF16)
    a, b, y = (torch.zeros(shape).bfloat16() for shape in ((3, 8), (16, 8), (3, 16)))
    good: tuple[Any, ...] = (spec.text(), a, b, [], [1e-5])
    for place, value, message in (
        (0, spec, "spec is of type FusedSpec; allowed: its text"),
        (1, None, "a is of type NoneType; allowed: a torch.Tensor"),
        (2, [1], "b is of type list; allowed: a torch.Tensor"),
        (4, [], "scalars is a list of 0; allowed: 1"),
        (4, [1e-5, 2.0], "scalars is a list of 2; allowed: 1"),
        (4, ["1"], r"scalars\[0\] is of type str; allowed: a number"),
    ):
        bad = (*good[:place], value, *good[place + 1 :])
        with pytest.raises(ArgumentError, match=message):
            ops.region(*bad)
        with pytest.raises(ArgumentError, match=message):
            ops.region_out(*bad, [y])
    with pytest.raises(ArgumentError, match=r"out\[0\] is of type NoneType; allowed: a torch.Tensor"):
        ops.region_out(*good, [None])  # type: ignore[list-item]


def test_errors_are_typed() -> None:
    spec = sum_of(2)
    a, b, t0, t1 = tensors(spec, 5)
    with pytest.raises(SpecError):
        ops.region("{}", a, b)
    with pytest.raises(SpecError):
        ops.region("no json", a, b)
    with pytest.raises(ArgumentError, match=r"operands is a list of 1; allowed: 2"):
        ops.region(spec.text(), a, b, [t0], [1.0])
    with pytest.raises(ArgumentError, match=r"scalars is a list of 0; allowed: 1"):
        ops.region(sum_of(7).text(), *tensors(sum_of(7), 5)[:2], tensors(sum_of(7), 5)[2:], [])
    with pytest.raises(
        ShapeError, match=r"t1 is of shape \(23,\); allowed: \(24,\), for a of shape \(5, 16\)"
    ):
        ops.region(spec.text(), a, b, [t0, t1[:-1]], [1.0])
    with pytest.raises(DTypeError, match=r"t0 is torch.float64; allowed: torch.float32"):
        ops.region(spec.text(), a, b, [t0.double(), t1], [1.0])
    with pytest.raises(ShapeError, match=r"a is of shape \(5, 8\); allowed: \(\.\.\., K\) with K = 16"):
        ops.region(spec.text(), a[:, :8], b, [t0, t1], [1.0])


@pytest.mark.parametrize("device", ["meta"])
def test_shapes_without_data(device: str) -> None:
    spec = two_outputs()
    a, b = (t.to(device) for t in tensors(spec, 2, 3))
    peak, y = GENERAL(spec.text(), a, b, [], [])
    assert (peak.shape, peak.dtype, y.shape, y.dtype) == ((2, 3), torch.float32, (2, 3, N), torch.bfloat16)


def test_importing_compiles_nothing_and_starts_no_cuda() -> None:
    program = (
        "import torch, subprocess, sys\n"
        "subprocess.Popen = None\n"
        "import comfuse.ops\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch.utils.cpp_extension' not in sys.modules\n"
        "from comfuse.ops import native\n"
        "assert not native.is_loaded()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_mark_for_dynamo_is_torch_s_own() -> None:
    from comfuse.ops.tracing import constant_when_traced

    def ours() -> None: ...
    def theirs() -> None: ...

    constant_when_traced(ours)
    torch.compiler.assume_constant_result(theirs)
    assert vars(ours) == vars(theirs)


def test_a_layernorm_is_a_spec_like_any_other() -> None:
    spec = catalog.layernorm(N, K, BF16, bias=BF16)
    a, b, bias = tensors(spec, 5)
    (y,) = ops.region(spec.text(), a, b, [bias], [1e-5])
    assert torch.equal(y, ops.fused_gemm_layernorm(a, b, bias))
