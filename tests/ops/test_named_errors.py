"""Bad arguments of the named ops: the error names the argument, what was got, what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from comfuse import fallbacks, ops
from comfuse.errors import ArgumentError, ComFuseError, DeviceError, DTypeError, ShapeError
from comfuse.generator import catalog
from comfuse.generator.spec import DType
from tests.ops.cases import BF16, BY_NAME, CASES, FP32, Case, K, N

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


# --- a change of one argument, by its kind -> the error that names it ---

META = "meta"
FLOATS = "torch.bfloat16, torch.float16, torch.float32"
Change = Callable[[Tensor], Any]
LAYOUTS: list[tuple[Change, type[ComFuseError], str]] = [
    (lambda t: t.to_sparse(), ArgumentError, "a tensor of layout torch.sparse_coo; allowed: strided tensors"),
    (
        lambda t: torch.nested.nested_tensor([t, t]),
        ArgumentError,
        "a nested tensor; allowed: strided tensors",
    ),
]
X: list[tuple[Change, type[ComFuseError], str]] = [
    (lambda t: t.flatten()[0], ShapeError, "a tensor of rank 0; allowed: (..., K)"),
    (lambda t: t.float(), DTypeError, "torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda t: t.double(), DTypeError, "torch.float64"),
    (lambda t: t.int(), DTypeError, "torch.int32"),
    (lambda t: None, ArgumentError, "of type NoneType; allowed: a torch.Tensor"),
    (lambda t: t.tolist(), ArgumentError, "of type list"),
]
WEIGHT: list[tuple[Change, type[ComFuseError], str]] = [
    (lambda t: t.t(), ShapeError, f"({K}, {N}); allowed: (N, K) with K = {K}"),
    (lambda t: t[0], ShapeError, f"({K},); allowed: (N, K)"),
    (lambda t: t[:0], ShapeError, f"(0, {K}); allowed: "),
    (lambda t: t[None], ShapeError, f"(1, {N}, {K}); allowed: (N, K)"),
    (lambda t: t[:, :-8], ShapeError, f"({N}, {K - 8}); allowed"),
    (lambda t: t.half(), DTypeError, "torch.float16; allowed: x's dtype, torch.bfloat16"),
    (lambda t: t.to(META), DeviceError, "on meta; allowed: x's device, cpu"),
    (lambda t: 3, ArgumentError, "of type int"),
]
ROW: list[tuple[Change, type[ComFuseError], str]] = [
    (lambda t: t[:-1], ShapeError, f"({N - 1},); allowed: ({N},)"),
    (lambda t: t[:1], ShapeError, f"(1,); allowed: ({N},)"),
    (lambda t: t.double(), DTypeError, f"torch.float64; allowed: {FLOATS}"),
    (lambda t: t.to(META), DeviceError, "on meta; allowed: x's device, cpu"),
    (lambda t: "no", ArgumentError, "of type str"),
]
TILE: list[tuple[Change, type[ComFuseError], str]] = [
    (lambda t: t[:, :-1], ShapeError, f"(2, 5, {N}); allowed: (2, 6, {N}), or what broadcasts to it"),
    (lambda t: t.transpose(0, 1), ShapeError, f"(6, 2, {N}); allowed: (2, 6, {N})"),
    (lambda t: t[..., :-8], ShapeError, f"(2, 6, {N - 8}); allowed: (2, 6, {N})"),
    (lambda t: t.long(), DTypeError, f"torch.int64; allowed: {FLOATS}"),
    (lambda t: t.to(META), DeviceError, "on meta; allowed: x's device, cpu"),
]


def faults_of(case: Case) -> Iterator[Any]:
    for names, faults in ((("x",), X), (case.weights, WEIGHT), (case.rows, ROW), (case.tiles, TILE)):
        for name in names:
            for i, fault in enumerate([*faults, *LAYOUTS]):
                yield pytest.param(case, name, *fault, id=f"{case.name}-{name}-{i}")


@pytest.mark.parametrize(
    "case, argument, change, error, message", [fault for case in CASES for fault in faults_of(case)]
)
def test_errors_name_the_argument(
    case: Case, argument: str, change: Change, error: type[ComFuseError], message: str
) -> None:
    arguments: dict[str, Any] = case.arguments((2, 6), BF16, BF16)
    arguments[argument] = change(arguments[argument])
    with pytest.raises(error) as caught:
        case(arguments)
    assert isinstance(caught.value, ArgumentError)
    assert (caught.value.op, caught.value.argument) == (case.op.__name__, argument)
    assert message in str(caught.value)
    assert not fallbacks.counts()


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.jagged])
@pytest.mark.parametrize("grad", [False, True])
def test_other_layouts_are_refused(layout: torch.layout, grad: bool) -> None:
    x, weight = torch.ones(4, K).bfloat16(), torch.ones(N, K).bfloat16().requires_grad_(grad)
    other = (
        x.to_sparse_csr() if layout is torch.sparse_csr else torch.nested.nested_tensor([x, x], layout=layout)
    )
    what = "a nested tensor" if layout is torch.jagged else f"a tensor of layout {layout}"
    with pytest.raises(ArgumentError, match=f"fused_gemm: x is {what}; allowed: strided"):
        ops.fused_gemm(other, weight)
    with torch.no_grad(), pytest.raises(ArgumentError, match=f"fused_gemm: out is {what}; allowed: strided"):
        ops.fused_gemm(x, weight, out=other)
    with torch.no_grad(), pytest.raises(ArgumentError, match=f"region: a is {what}; allowed: strided"):
        ops.region(catalog.linear(N, K, DType.BF16).text(), other, weight)
    assert not fallbacks.counts()


@pytest.mark.parametrize("operand", ["b", "operands[0]"])
def test_regions_refuse_sparse_operands(operand: str) -> None:
    x, weight, bias = torch.ones(4, K).bfloat16(), torch.ones(N, K).bfloat16(), torch.ones(N).bfloat16()
    spec = catalog.linear(N, K, DType.BF16, bias=DType.BF16).text()
    b, rest = (weight.to_sparse(), bias) if operand == "b" else (weight, bias.to_sparse())
    with pytest.raises(ArgumentError) as caught:
        ops.region(spec, x, b, [rest])
    assert (caught.value.argument, caught.value.got) == (operand, "a tensor of layout torch.sparse_coo")
    assert not fallbacks.counts()


@every_case
def test_float32_is_refused_also_where_all_agree(case: Case) -> None:
    arguments = case.arguments((4,), FP32, FP32)
    for grad in (False, True):
        weight = {case.weights[0]: arguments[case.weights[0]].requires_grad_(grad)}
        with pytest.raises(
            DTypeError, match=r"x is torch\.float32; allowed: torch\.bfloat16, torch\.float16"
        ):
            case(arguments | weight)
    assert not fallbacks.counts()


def test_gradients_have_the_same_rules() -> None:
    case = BY_NAME["layernorm all"]
    arguments = case.arguments((2, 6), BF16, BF16)
    arguments["weight"].requires_grad_()
    with pytest.raises(ShapeError, match=r"bias is of shape \(1,\); allowed: \(48,\)"):
        case(arguments | {"bias": arguments["bias"][:1]})
    with pytest.raises(ShapeError, match=r"residual is of shape \(2, 5, 48\); allowed: \(2, 6, 48\)"):
        case(arguments | {"residual": arguments["residual"][:, :5]})
    assert not fallbacks.counts()


def test_a_weight_on_its_side_is_recognised() -> None:
    with pytest.raises(ShapeError, match="transpose it"):
        ops.fused_gemm(torch.zeros(4, K).bfloat16(), torch.zeros(K, N).bfloat16())


OPTIONS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (ops.fused_gemm, {"activation": "swish"}, r"activation is 'swish'; allowed: None, .*'silu'"),
    (ops.fused_gemm, {"activation": ["relu"]}, r"activation is \['relu'\]; allowed: None"),
    (
        ops.fused_gemm_rmsnorm,
        {"residual_position": "beside"},
        r"residual_position is 'beside'; allowed: 'before', 'after'",
    ),
    (ops.fused_gemm_quantize, {"norm": "batchnorm"}, r"norm is 'batchnorm'; allowed: None, 'layernorm'"),
    (
        ops.fused_gemm_quantize,
        {"dtype": torch.int8},
        r"dtype is torch\.int8; allowed: torch\.float8_e4m3fn, torch\.float8_e5m2",
    ),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("op, options, message", OPTIONS)
def test_options_are_checked(
    op: Callable[..., Any], options: dict[str, Any], message: str, grad: bool
) -> None:
    x, weight = torch.zeros(4, K).bfloat16(), torch.zeros(N, K).bfloat16().requires_grad_(grad)
    with pytest.raises(ArgumentError, match=f"{op.__name__}: {message}"):
        op(x, weight, **options)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("value", [None, "1e-5", 1j, [1.0], torch.ones(2)])
@pytest.mark.parametrize(
    "op, name, options",
    [
        (ops.fused_gemm_layernorm, "eps", {}),
        (ops.fused_gemm_rmsnorm, "eps", {}),
        (ops.fused_gemm_rmsnorm, "weight_offset", {}),
        (ops.fused_gemm_softmax, "scale", {}),
        (ops.fused_gemm_quantize, "eps", {"norm": "rmsnorm"}),
        (ops.fused_gemm_cross_entropy, "ignore_index", {"target": torch.zeros(4).long()}),
        (ops.fused_mlp, "eps", {"w1": torch.zeros(N, N).bfloat16(), "norm": "layernorm"}),
    ],
)
def test_numbers_are_checked(
    op: Callable[..., Any], name: str, options: dict[str, Any], value: Any, grad: bool
) -> None:
    x, weight = torch.zeros(4, K).bfloat16(), torch.zeros(N, K).bfloat16()
    weight.requires_grad_(grad and op is not ops.fused_gemm_quantize)
    allowed = "an int" if name == "ignore_index" else "a number"
    with pytest.raises(ArgumentError, match=f"{op.__name__}: {name} is of type .*; allowed: {allowed}"):
        op(x, weight, **options, **{name: value})


def test_numbers_may_be_of_any_type() -> None:
    x, weight = torch.ones(4, K).bfloat16(), torch.eye(N, K).bfloat16()
    wanted = ops.fused_gemm_softmax(x, weight, scale=2.0)
    for two in (2, torch.tensor(2.0), torch.tensor(2), np.float32(2.0), np.int64(2)):
        assert torch.equal(ops.fused_gemm_softmax(x, weight, scale=two), wanted)


def test_out_is_checked() -> None:
    case = BY_NAME["gemm"]
    arguments = case.arguments((6,), BF16, BF16)
    for out, error, message in (
        ([1.0], ArgumentError, r"out is of type list; allowed: a torch\.Tensor"),
        (torch.zeros(6, N - 1).bfloat16(), ShapeError, r"out is of shape \(6, 47\); allowed: \(6, 48\)"),
        (torch.zeros(6, N), DTypeError, r"out is torch\.float32; allowed: torch\.bfloat16"),
        (torch.zeros(6, N, device=META).bfloat16(), DeviceError, "out is on meta; allowed: a's device, cpu"),
        (torch.zeros(1, N).bfloat16().expand(6, N), ArgumentError, r"out is of strides \(0, 1\)"),
        (
            torch.zeros(6, N).bfloat16().requires_grad_(),
            ArgumentError,
            r"out is given where a tensor requires a gradient; allowed: None there; use torch\.no_grad",
        ),
    ):
        with pytest.raises(error, match=f"fused_gemm: {message}"):
            case.op(**arguments, out=out)
    residual = torch.zeros(6, N).bfloat16()
    with pytest.raises(ArgumentError, match="out is in memory that residual is in too"):
        case.op(**arguments, residual=residual, out=residual)
    with pytest.raises(ShapeError, match="bias is of shape"):
        case.op(**arguments, bias=torch.zeros(3), out=torch.zeros(6, N).bfloat16())
