"""The named ops on CPU tensors: numbers, shapes, dtypes, gradients, torch.compile, errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from comfuse import fallbacks, ops
from comfuse.errors import ArgumentError, ComFuseError, DeviceError, DTypeError, FallbackError, ShapeError

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
N, K = 48, 32


@dataclass(frozen=True)
class Case:
    """An op with some of its arguments, and what it computes in float64."""

    name: str
    op: Callable[..., Tensor]
    rows: tuple[str, ...]
    residual: bool
    options: dict[str, Any]
    expected: Callable[..., Tensor]

    def arguments(self, lead: tuple[int, ...], dtype: torch.dtype, other: torch.dtype) -> dict[str, Tensor]:
        torch.manual_seed(0)
        tensors = {"x": torch.randn(*lead, K).to(dtype), "weight": torch.randn(N, K).to(dtype)}
        if self.residual:
            tensors["residual"] = (torch.randn(*lead, N) * 3).to(other)
        return tensors | {name: torch.randn(N).to(other) for name in self.rows}


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Any = 0,
    residual: Any = 0,
    ln_weight: Any = None,
    ln_bias: Any = None,
    eps: float = 1e-5,
) -> Tensor:
    return F.layer_norm(x @ weight.t() + bias + residual, (N,), ln_weight, ln_bias, eps)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    bias: Any = 0,
    residual: Any = 0,
    rms_weight: Any = 1.0,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    residual_position: str = "before",
) -> Tensor:
    z = x @ weight.t() + bias + (residual if residual_position == "before" else 0)
    y = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps) * (rms_weight + weight_offset)
    return y if residual_position == "before" else y + residual


def linear(
    x: Tensor, weight: Tensor, bias: Any = 0, activation: str | None = None, residual: Any = 0
) -> Tensor:
    functions: dict[str | None, Callable[[Tensor], Tensor]] = {
        None: lambda z: z,
        "gelu": F.gelu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
        "silu": F.silu,
        "relu": F.relu,
    }
    return functions[activation](x @ weight.t() + bias) + residual


LN, RMS, GEMM = ops.fused_gemm_layernorm, ops.fused_gemm_rmsnorm, ops.fused_gemm
AFTER = {"residual_position": "after", "eps": 1e-2}
CASES = [
    Case("layernorm", LN, (), False, {}, layer_norm),
    Case("layernorm all", LN, ("bias", "ln_weight", "ln_bias"), True, {"eps": 1e-3}, layer_norm),
    Case("layernorm ln_bias", LN, ("ln_bias",), True, {}, layer_norm),
    Case("rmsnorm", RMS, (), False, {}, rms_norm),
    Case("rmsnorm before", RMS, ("bias", "rms_weight"), True, {"weight_offset": 1.0}, rms_norm),
    Case("rmsnorm after", RMS, ("rms_weight",), True, AFTER, rms_norm),
    Case("gemm", GEMM, (), False, {}, linear),
    Case("gemm gelu", GEMM, ("bias",), True, {"activation": "gelu"}, linear),
    Case("gemm gelu_tanh", GEMM, ("bias",), False, {"activation": "gelu_tanh"}, linear),
    Case("gemm silu", GEMM, (), True, {"activation": "silu"}, linear),
    Case("gemm relu", GEMM, ("bias",), True, {"activation": "relu"}, linear),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_right(got: Tensor, case: Case, arguments: dict[str, Tensor], scale: float = 1.0) -> None:
    expected = case.expected(**{k: v.double() for k, v in arguments.items()}, **case.options)
    assert got.shape == expected.shape
    assert got.dtype == arguments["x"].dtype
    if expected.numel() == 0:
        return
    unit = 2.0**-8 if got.dtype == BF16 else 2.0**-11  # half a unit in the last place: one rounding
    error = (got.double() - expected).norm() / expected.norm()
    assert error < scale * unit


@every_case
@pytest.mark.parametrize("dtype, other", [(BF16, BF16), (FP16, FP16), (BF16, FP32), (FP16, BF16)])
def test_numbers(case: Case, dtype: torch.dtype, other: torch.dtype) -> None:
    arguments = case.arguments((33,), dtype, other)
    assert_right(case.op(**arguments, **case.options), case, arguments)
    assert not fallbacks.counts()


@every_case
@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (1, 1, 5), (0,), (2, 0, 3)])
def test_leading_shapes(case: Case, lead: tuple[int, ...]) -> None:
    arguments = case.arguments(lead, BF16, BF16)
    assert_right(case.op(**arguments, **case.options), case, arguments)


@every_case
def test_a_residual_may_be_flat(case: Case) -> None:
    arguments = case.arguments((2, 3), BF16, BF16)
    flat = dict(arguments)
    if case.residual:
        flat["residual"] = arguments["residual"].view(6, N)
    assert torch.equal(case.op(**flat, **case.options), case.op(**arguments, **case.options))


@every_case
def test_tensors_that_are_not_contiguous(case: Case) -> None:
    arguments = case.arguments((4, 6), BF16, BF16)
    other = {name: t.t().contiguous().t() if t.ndim == 2 else t for name, t in arguments.items()}
    other["x"] = other["x"].transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(case.op(**other, **case.options), case.op(**arguments, **case.options))


@every_case
def test_sizes_that_no_kernel_takes_work_on_a_cpu(case: Case) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 7).bfloat16(), torch.randn(13, 7).bfloat16()
    assert case.op(x, weight).shape == (5, 13)
    assert case.op(x[:, :0], weight[:, :0]).shape == (5, 13)  # K = 0: the program applied to zeros


@every_case
def test_gradients_run_torch_s_own_ops_and_are_counted(case: Case) -> None:
    arguments = case.arguments((2, 6), BF16, FP32)
    leaves = {name: t.clone().requires_grad_() for name, t in arguments.items()}
    y = case.op(**leaves, **case.options)
    assert_right(y.detach(), case, arguments, scale=4.0)
    towards = torch.randn(2, 6, N)
    (y * towards).sum().backward()
    doubles = {name: t.double().requires_grad_() for name, t in arguments.items()}
    (case.expected(**doubles, **case.options) * towards).sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        error = (leaf.grad.double() - doubles[name].grad).norm() / doubles[name].grad.norm()
        assert error < 0.05, name
    ((where, _),) = fallbacks.counts()
    assert where == case.op.__name__
    with torch.no_grad():
        case.op(**leaves, **case.options)
    assert sum(fallbacks.counts().values()) == 1


@every_case
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(case: Case, dynamic: bool) -> None:
    arguments = case.arguments((2, 6), BF16, BF16)

    def f(x: Tensor, **rest: Tensor) -> Tensor:
        return case.op(x * 2, **rest, **case.options) + 1

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert torch.equal(compiled(**arguments), f(**arguments))
    assert not fallbacks.counts()


@pytest.mark.slow
def test_compiled_by_inductor() -> None:
    case = CASES[1]
    arguments = case.arguments((2, 6), BF16, BF16)
    torch.compiler.reset()
    compiled = torch.compile(lambda **t: case.op(**t, **case.options).relu(), fullgraph=True)
    assert torch.equal(compiled(**arguments), case.op(**arguments, **case.options).relu())


def test_compiled_with_gradients() -> None:
    case = CASES[1]
    arguments = case.arguments((2, 6), BF16, BF16)
    weight = arguments["weight"].clone().requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(lambda **t: case.op(**t, **case.options), fullgraph=True, backend="aot_eager")
    compiled(**(arguments | {"weight": weight})).sum().backward()
    assert weight.grad is not None
    assert sum(fallbacks.counts().values()) == 1


def test_one_trace_serves_every_m() -> None:
    case = CASES[1]
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda **t: case.op(**t, **case.options), fullgraph=True, backend=counter, dynamic=True
    )
    traces = []
    for m in (3, 7, 12):
        arguments = case.arguments((2, m), BF16, BF16)
        for name in ("weight", "bias", "ln_weight", "ln_bias"):
            torch._dynamo.mark_static(arguments[name])
        assert_right(compiled(**arguments), case, arguments)
        traces.append(counter.frame_count)
    assert len(set(traces)) == 1


def test_strict_forbids_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    arguments = CASES[0].arguments((4,), BF16, BF16)
    CASES[0].op(**arguments)  # the reference on a CPU is none
    arguments["weight"].requires_grad_()
    with pytest.raises(FallbackError, match="gradient"):
        CASES[0].op(**arguments)


# --- errors: change of one argument -> the error that names it ---

META = "meta"
FAULTS: list[tuple[str, Callable[[dict[str, Tensor]], Any], type[ComFuseError], str]] = [
    ("x", lambda t: t["x"].flatten()[0], ShapeError, "a tensor of rank 0"),
    ("x", lambda t: t["x"].float(), DTypeError, "torch.float32; allowed: torch.bfloat16, torch.float16"),
    ("x", lambda t: t["x"].double(), DTypeError, "torch.float64"),
    ("x", lambda t: t["x"].int(), DTypeError, "torch.int32"),
    ("x", lambda t: None, ArgumentError, "of type NoneType; allowed: a torch.Tensor"),
    ("x", lambda t: t["x"].tolist(), ArgumentError, "of type list"),
    ("weight", lambda t: t["weight"].t(), ShapeError, f"({K}, {N}); allowed: (N, K) with K = {K}"),
    ("weight", lambda t: t["weight"][0], ShapeError, f"({K},); allowed: (N, K)"),
    ("weight", lambda t: t["weight"][None], ShapeError, f"(1, {N}, {K}); allowed: (N, K)"),
    ("weight", lambda t: t["weight"][:, :-8], ShapeError, f"({N}, {K - 8}); allowed"),
    ("weight", lambda t: t["weight"].half(), DTypeError, "torch.float16; allowed: x's dtype, torch.bfloat16"),
    ("weight", lambda t: t["weight"].to(META), DeviceError, "on meta; allowed: x's device, cpu"),
    ("weight", lambda t: 3, ArgumentError, "of type int"),
    ("bias", lambda t: t["bias"][:-1], ShapeError, f"({N - 1},); allowed: ({N},)"),
    (
        "bias",
        lambda t: t["bias"].double(),
        DTypeError,
        "torch.float64; allowed: torch.bfloat16, torch.float16, torch.f",
    ),
    ("bias", lambda t: t["bias"].to(META), DeviceError, "on meta; allowed: x's device, cpu"),
    ("bias", lambda t: "no", ArgumentError, "of type str"),
    ("residual", lambda t: t["residual"][:, :-1], ShapeError, f"(2, 5, {N}); allowed: (2, 6, {N})"),
    ("residual", lambda t: t["residual"].transpose(0, 1), ShapeError, f"(6, 2, {N}); allowed: (2, 6, {N})"),
    ("residual", lambda t: t["residual"][0], ShapeError, f"(6, {N}); allowed: (2, 6, {N})"),
    ("residual", lambda t: t["residual"][..., :-8], ShapeError, f"(2, 6, {N - 8}); allowed: (2, 6, {N})"),
    ("residual", lambda t: t["residual"].long(), DTypeError, "torch.int64"),
    ("residual", lambda t: t["residual"].to(META), DeviceError, "on meta; allowed: x's device, cpu"),
]


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[7]], ids=lambda case: case.name)
@pytest.mark.parametrize("argument, change, error, message", FAULTS)
def test_errors_name_the_argument(
    case: Case,
    argument: str,
    change: Callable[[dict[str, Tensor]], Any],
    error: type[ComFuseError],
    message: str,
) -> None:
    arguments: dict[str, Any] = case.arguments((2, 6), BF16, BF16)
    arguments[argument] = change(arguments)
    with pytest.raises(error) as caught:
        case.op(**arguments, **case.options)
    assert isinstance(caught.value, ArgumentError)
    assert (caught.value.op, caught.value.argument) == (case.op.__name__, argument)
    assert message in str(caught.value)


@pytest.mark.parametrize("argument", ["ln_weight", "ln_bias"])
def test_errors_name_the_norm_s_vectors(argument: str) -> None:
    arguments = CASES[1].arguments((2, 6), BF16, BF16)
    arguments[argument] = arguments[argument][:-8]
    with pytest.raises(
        ShapeError, match=rf"fused_gemm_layernorm: {argument} is of shape \(40,\); allowed: \(48,\)"
    ):
        ops.fused_gemm_layernorm(**arguments)


@every_case
def test_float32_is_refused_also_where_all_agree(case: Case) -> None:
    arguments = case.arguments((4,), FP32, FP32)
    for grad in (False, True):
        with pytest.raises(
            DTypeError, match=r"x is torch\.float32; allowed: torch\.bfloat16, torch\.float16"
        ):
            case.op(**(arguments | {"weight": arguments["weight"].requires_grad_(grad)}), **case.options)
    assert not fallbacks.counts()


def test_nothing_is_broadcast_on_the_way_to_gradients() -> None:
    arguments = CASES[1].arguments((2, 6), BF16, BF16)
    arguments["weight"].requires_grad_()
    with pytest.raises(ShapeError, match=r"bias is of shape \(1,\); allowed: \(48,\)"):
        ops.fused_gemm_layernorm(**(arguments | {"bias": arguments["bias"][:1]}))
    with pytest.raises(ShapeError, match=r"residual is of shape \(1, 6, 48\); allowed: \(2, 6, 48\)"):
        ops.fused_gemm_layernorm(**(arguments | {"residual": arguments["residual"][:1]}))


def test_a_weight_on_its_side_is_recognised() -> None:
    with pytest.raises(ShapeError, match="transpose it"):
        ops.fused_gemm(torch.zeros(4, K).bfloat16(), torch.zeros(K, N).bfloat16())


def test_options_are_checked() -> None:
    x, weight = torch.zeros(4, K).bfloat16(), torch.zeros(N, K).bfloat16()
    with pytest.raises(ArgumentError, match=r"activation is 'swish'; allowed: None, .*silu"):
        ops.fused_gemm(x, weight, activation="swish")
    with pytest.raises(ArgumentError, match=r"residual_position is 'beside'; allowed: 'before', 'after'"):
        ops.fused_gemm_rmsnorm(x, weight, residual_position="beside")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"activation is 'swish'"):
        ops.fused_gemm(x, weight.requires_grad_(), activation="swish")
