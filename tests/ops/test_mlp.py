"""fused_mlp and fused_b2b_gemm on CPU tensors: numbers, shapes, dtypes, gradients, torch.compile, errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import fallbacks, ops
from comfuse.errors import ArgumentError, DTypeError, GradientError, ShapeError
from comfuse.ops import named
from tests.ops.cases import BF16, FP16, FP32, activate

K, H, N = 32, 40, 24
# Two roundings, each at most half a unit in the last place.
TOLERANCE = {BF16: 4e-3, FP16: 6e-4}
_SIZES = {"w0": (H, K), "w_gate": (H, K), "w1": (N, H), "b0": (H,), "b_gate": (H,), "residual0": (H,)}


def mlp(
    x: Tensor,
    w0: Tensor,
    w1: Tensor,
    b0: Any = 0,
    b1: Any = 0,
    activation: str | None = "gelu",
    w_gate: Tensor | None = None,
    b_gate: Any = 0,
    norm: str | None = None,
    norm_weight: Any = None,
    norm_bias: Any = None,
    residual: Any = 0,
    residual_position: str = "before",
    eps: float = 1e-5,
) -> Tensor:
    h = x @ w0.t() + b0
    h = activate(h, activation) if w_gate is None else activate(x @ w_gate.t() + b_gate, activation) * h
    y = h @ w1.t() + b1
    y = y + residual if residual_position == "before" else y
    if norm == "layernorm":
        y = F.layer_norm(y, (N,), norm_weight, norm_bias, eps)
    elif norm == "rmsnorm":
        y = F.rms_norm(y, (N,), norm_weight, eps)
    return y + residual if residual_position == "after" else y


def b2b(
    x: Tensor,
    w0: Tensor,
    w1: Tensor,
    b0: Any = 0,
    b1: Any = 0,
    activation0: str | None = None,
    activation1: str | None = None,
    residual0: Any = 0,
    residual1: Any = 0,
) -> Tensor:
    middle = activate(x @ w0.t() + b0, activation0) + residual0
    return activate(middle @ w1.t() + b1, activation1) + residual1


@dataclass(frozen=True)
class Case:
    """An op with some of its arguments, by name, and its meaning."""

    name: str
    op: Callable[..., Tensor]
    expected: Callable[..., Tensor]
    given: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def tiles(self) -> list[str]:
        return [name for name in self.given if name.startswith("residual")]

    def arguments(self, lead: tuple[int, ...], dtype: torch.dtype, other: torch.dtype) -> dict[str, Tensor]:
        torch.manual_seed(0)
        result = {"x": torch.randn(*lead, K).to(dtype)}
        for name in ("w0", "w1", *self.given):
            size = _SIZES.get(name, (N,))
            if name.startswith("w"):
                result[name] = (torch.randn(size) / size[1] ** 0.5).to(dtype)
            else:
                shape = (*lead, *size) if name in self.tiles else size
                result[name] = torch.randn(shape).to(other)
        return result

    def __call__(self, arguments: dict[str, Any]) -> Tensor:
        return self.op(**arguments, **self.options)

    def reference(self, arguments: dict[str, Tensor]) -> Tensor:
        return self.expected(**{name: t.double() for name, t in arguments.items()}, **self.options)

    def check(self, y: Tensor, arguments: dict[str, Tensor]) -> None:
        wanted, dtype = self.reference(arguments), arguments["x"].dtype
        assert (y.shape, y.dtype) == (wanted.shape, dtype)
        assert (y.double() - wanted).norm() <= TOLERANCE[dtype] * wanted.norm()


_NORM = ("norm_weight", "norm_bias")
_ALL = ("b0", "b1", "w_gate", "b_gate", *_NORM, "residual")
CASES = [
    Case("mlp", ops.fused_mlp, mlp),
    Case("mlp biases", ops.fused_mlp, mlp, ("b0", "b1"), {"activation": "relu"}),
    Case("mlp residual", ops.fused_mlp, mlp, ("b1", "residual"), {"activation": None}),
    Case("gated", ops.fused_mlp, mlp, ("w_gate",), {"activation": "silu"}),
    Case("gated all", ops.fused_mlp, mlp, _ALL, {"activation": "silu", "norm": "layernorm"}),
    Case("layernorm", ops.fused_mlp, mlp, (), {"norm": "layernorm", "eps": 1e-3}),
    Case(
        "layernorm after",
        ops.fused_mlp,
        mlp,
        ("b0", "b1", *_NORM, "residual"),
        {"activation": "silu", "norm": "layernorm", "residual_position": "after"},
    ),
    Case("rmsnorm", ops.fused_mlp, mlp, ("norm_weight", "residual"), {"norm": "rmsnorm"}),
    Case(
        "rmsnorm after", ops.fused_mlp, mlp, ("residual",), {"norm": "rmsnorm", "residual_position": "after"}
    ),
    Case("b2b", ops.fused_b2b_gemm, b2b),
    Case("b2b silu", ops.fused_b2b_gemm, b2b, ("b0",), {"activation0": "silu"}),
    Case(
        "b2b all",
        ops.fused_b2b_gemm,
        b2b,
        ("b0", "b1", "residual0", "residual1"),
        {"activation0": "gelu", "activation1": "sigmoid"},
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
with_tiles = pytest.mark.parametrize("case", [c for c in CASES if c.tiles], ids=str)


@every_case
@pytest.mark.parametrize("dtype, other", [(BF16, BF16), (FP16, FP32)])
def test_numbers(case: Case, dtype: torch.dtype, other: torch.dtype) -> None:
    arguments = case.arguments((33,), dtype, other)
    case.check(case(arguments), arguments)
    assert not fallbacks.counts()


@every_case
@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (0,), (2, 0, 3)])
def test_leading_shapes(case: Case, lead: tuple[int, ...]) -> None:
    arguments = case.arguments(lead, BF16, BF16)
    case.check(case(arguments), arguments)


@with_tiles
def test_tiles_may_be_flat_or_broadcast(case: Case) -> None:
    arguments = case.arguments((2, 3), BF16, BF16)
    flat = {name: arguments[name].flatten(0, 1) for name in case.tiles}
    assert torch.equal(case(arguments | flat), case(arguments))
    for part in (lambda t: t[:1], lambda t: t[:, :1], lambda t: t[0, 0]):
        some = arguments | {name: part(arguments[name]) for name in case.tiles}
        case.check(case(some), some)


@every_case
def test_tensors_that_are_not_contiguous(case: Case) -> None:
    arguments = case.arguments((4, 6), BF16, BF16)
    other = {name: t.t().contiguous().t() if t.ndim == 2 else t for name, t in arguments.items()}
    other["x"] = other["x"].transpose(0, 1).contiguous().transpose(0, 1)
    case.check(case(other), arguments)


def test_the_residual_may_be_x() -> None:
    case = next(c for c in CASES if c.name == "mlp residual")
    torch.manual_seed(0)
    x, w0, w1 = torch.randn(5, N).bfloat16(), torch.randn(H, N).bfloat16(), torch.randn(N, H).bfloat16()
    arguments = {"x": x, "w0": w0 / 5, "w1": w1 / 6, "residual": x}
    case.check(case(arguments), arguments)


@every_case
def test_sizes_that_no_kernel_takes_work_on_a_cpu(case: Case) -> None:
    arguments = case.arguments((5,), BF16, FP32)
    some = {name: t[..., :7] if name in ("x", "w0", "w_gate") else t for name, t in arguments.items()}
    case.check(case(some), some)
    none = {name: t[..., :0] if name in ("x", "w0", "w_gate") else t for name, t in arguments.items()}
    assert torch.equal(case(none), case(arguments | {"x": arguments["x"] * 0}))


@every_case
def test_gradients(case: Case) -> None:
    arguments = case.arguments((3, 7), BF16, FP32)
    leaves = {name: t.requires_grad_() for name, t in arguments.items()}
    grad = torch.randn(3, 7, N)
    case(leaves).backward(grad.bfloat16())
    doubles = {name: t.detach().double().requires_grad_() for name, t in arguments.items()}
    case.expected(**doubles, **case.options).backward(grad.bfloat16().double())
    for name, leaf in leaves.items():
        wanted = doubles[name].grad
        assert leaf.grad is not None, name
        assert leaf.grad.dtype is leaf.dtype
        # Each of some ten roundings on the way back has a share.
        assert (leaf.grad.double() - wanted).norm() <= 3e-2 * wanted.norm(), name
    assert not fallbacks.counts()


@every_case
def test_a_gradient_of_one_argument_alone(case: Case) -> None:
    for name in case.arguments((3,), BF16, BF16):
        arguments = case.arguments((3,), BF16, BF16)
        y = case(arguments | {name: arguments[name].requires_grad_()})
        (grad,) = torch.autograd.grad(y.float().square().sum(), arguments[name])
        assert bool(grad.isfinite().all())
        assert bool(grad.any())
        with torch.no_grad():
            assert not case(arguments).requires_grad


def test_no_second_derivative() -> None:
    arguments = CASES[0].arguments((3,), BF16, BF16)
    x = arguments["x"].requires_grad_()
    (grad,) = torch.autograd.grad(CASES[0](arguments).float().square().sum(), x, create_graph=True)
    with pytest.raises(GradientError, match="twice"):
        grad.float().sum().backward()


@every_case
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(case: Case, dynamic: bool) -> None:
    arguments = case.arguments((2, 6), BF16, BF16)

    def f(x: Tensor, **rest: Tensor) -> Tensor:
        return case.op(x * 2, **rest, **case.options).float() + 1

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert torch.equal(compiled(**arguments), f(**arguments))
    assert not fallbacks.counts()


@pytest.mark.parametrize("case", [CASES[4], CASES[-1]], ids=str)
def test_autocast(case: Case) -> None:
    arguments = case.arguments((5,), FP32, FP32)
    with torch.autocast("cpu", dtype=BF16):
        y = case(arguments)
    halves = {
        name: t.bfloat16() if name in ("x", "w0", "w1", "w_gate") else t for name, t in arguments.items()
    }
    assert torch.equal(y, case(halves))


def test_a_call_s_text_is_looked_up_by_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a text depends on is part of the key that it is remembered by."""
    case = CASES[0]
    first = case.arguments((5,), BF16, BF16)
    case(first)
    monkeypatch.setattr(named, "_text_of", lambda *facts: pytest.fail(f"made anew: {facts}"))
    case(first)
    monkeypatch.undo()
    torch.manual_seed(0)
    for k, h, n in ((16, H, N), (K, 16, N), (K, H, 16)):
        sizes = {"x": (5, k), "w0": (h, k), "w1": (n, h)}
        arguments = {name: (torch.randn(size) / 4).bfloat16() for name, size in sizes.items()}
        case.check(case(arguments), arguments)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"w1": None}, ArgumentError, "w1 is of type NoneType; allowed: a torch.Tensor"),
        (
            {"w1": lambda t: t.t()},
            ShapeError,
            r"w1 is of shape \(40, 24\); .* H = 40, the rows of w_gate; transp",
        ),
        ({"w1": lambda t: t[0]}, ShapeError, r"w1 is of shape \(40,\); allowed: \(N, H\)"),
        ({"w1": lambda t: t.float()}, DTypeError, "w1 is torch.float32; allowed: x's dtype"),
        ({"w0": lambda t: t[:, 1:]}, ShapeError, r"w0 is of shape \(40, 31\); .* K = 32"),
        ({"w_gate": lambda t: t[1:]}, ShapeError, r"w0 is of shape \(40, 32\); allowed: w_gate's shape"),
        ({"x": lambda t: t.float()}, DTypeError, "x is torch.float32"),
        ({"b0": lambda t: t[1:]}, ShapeError, r"b0 is of shape \(39,\); allowed: \(40,\)"),
        ({"b1": lambda t: t[1:]}, ShapeError, r"b1 is of shape \(23,\); allowed: \(24,\)"),
        ({"norm_bias": lambda t: t.double()}, DTypeError, "norm_bias is torch.float64"),
        ({"residual": lambda t: t[:2]}, ShapeError, r"residual is of shape \(2, 24\); allowed: \(5, 24\)"),
        ({"activation": "softmax"}, ArgumentError, "activation is 'softmax'"),
        ({"norm": "batchnorm", "norm_bias": None}, ArgumentError, "norm is 'batchnorm'; allowed: None, 'lay"),
        ({"residual_position": "inside"}, ArgumentError, "residual_position is 'inside'"),
        ({"w_gate": None}, ArgumentError, "b_gate is given; allowed: None, as there is no w_gate"),
        ({"norm": None}, ArgumentError, "norm_weight is given; allowed: None, as there is no norm"),
        (
            {"norm": "rmsnorm"},
            ArgumentError,
            "norm_bias is given; allowed: None, as the norm is no layernorm",
        ),
    ],
)
@pytest.mark.parametrize("gradient", [False, True])
def test_bad_arguments(change: dict[str, Any], error: type[Exception], message: str, gradient: bool) -> None:
    case = next(c for c in CASES if c.name == "gated all")
    arguments: dict[str, Any] = {**case.arguments((5,), BF16, BF16), **case.options}
    if gradient:
        arguments["w0"].requires_grad_()
    for name, value in change.items():
        arguments[name] = value(arguments[name]) if callable(value) else value
    with pytest.raises(error, match=f"fused_mlp: {message}"):
        ops.fused_mlp(**arguments)
