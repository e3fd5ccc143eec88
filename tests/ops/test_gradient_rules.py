"""What has no gradient, what is kept for a backward, autocast and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from comfuse import ops
from comfuse.errors import ArgumentError, DTypeError, GradientError, ShapeError
from tests.ops.cases import BF16, BY_NAME, FP32, Case, K, N
from tests.ops.differentiable import CROSS_ENTROPIES, arguments_of, differentiable, every_case
from tests.ops.gradients import gradients, leaves

pytestmark = pytest.mark.usefixtures("nothing_falls_back")


# --- what has no gradient ---


def test_quantised_values_have_none() -> None:
    case = BY_NAME["quantize"]
    with pytest.raises(GradientError, match=r"fused_gemm_quantize: .* torch.no_grad\(\)"):
        case(leaves(case.arguments((3,), BF16, BF16)))


def test_what_an_activation_read_on_the_way_back_has_none() -> None:
    case = BY_NAME["colsum gelu"]
    with pytest.raises(GradientError, match=r"fused_gemm_colsum: pre_activation .* detached"):
        case(leaves(case.arguments((3,), BF16, BF16), wanted=["pre_activation"]))


@pytest.mark.parametrize("name", ["gemm", "layernorm all", "quantize"])
def test_there_is_none_in_forward_mode(name: str) -> None:
    case = BY_NAME[name]
    arguments = case.arguments((3,), BF16, BF16)

    def of_x(x: Tensor) -> Tensor:
        return case(arguments | {"x": x})[0]

    x = arguments["x"]
    with pytest.raises(GradientError, match=f"{case.op.__name__}: .* forward-mode"):
        torch.func.jvp(of_x, (x,), (x,))
    with pytest.raises(GradientError, match=f"{case.op.__name__}: .* forward-mode"):
        torch.func.jacfwd(of_x)(x)
    with forward_ad.dual_level():
        of_x(x)
        with pytest.raises(GradientError, match=f"{case.op.__name__}: .* forward-mode"):
            of_x(forward_ad.make_dual(x, x))


def test_attention_has_none_in_forward_mode() -> None:
    q = torch.randn(2, 8, 8).bfloat16()
    with pytest.raises(GradientError, match=r"fused_attention: .* forward-mode"):
        torch.func.jvp(ops.fused_attention, (q, q, q), (q, q, q))


@every_case
def test_there_is_none_in_a_transform(case: Case) -> None:
    arguments = arguments_of(case)
    with pytest.raises(GradientError, match=rf"{case.op.__name__}: .* torch\.func"):
        torch.func.grad(lambda x: case(arguments | {"x": x})[0].sum())(arguments["x"])


@every_case
@pytest.mark.parametrize("linear", [True, False])
def test_there_is_no_second_derivative(case: Case, linear: bool) -> None:
    """Also where the gradient that comes in does not depend on anything."""
    arguments = arguments_of(case)
    given = leaves(arguments, wanted=["x", "weight", *case.weights])
    y = case(given)[0].float()
    (dx,) = torch.autograd.grad(y.sum() if linear else y.square().sum(), given["x"], create_graph=True)
    assert dx.requires_grad
    with pytest.raises(GradientError, match=f"{case.op.__name__}: .* twice"):
        (dx.float().square().sum() + given["x"].sum()).backward()


@every_case
def test_nor_is_there_one_where_a_single_input_wants_it(case: Case) -> None:
    """What the forward keeps depends on that input as well."""
    arguments = arguments_of(case)
    for name in differentiable(case, arguments):
        given = leaves(arguments, wanted=[name])
        exact = leaves(arguments, torch.float64, wanted=[name])
        (expected,) = torch.autograd.grad(
            sum(y.sum() for y in case.reference(exact)), exact[name], create_graph=True
        )
        (found,) = torch.autograd.grad(
            sum(y.float().sum() for y in case(given)), given[name], create_graph=True
        )
        if _varies(expected, exact[name]):
            with pytest.raises(GradientError, match=f"{case.op.__name__}: .* twice"):
                (found.float().square().sum() + given[name].sum()).backward()


def _varies(y: Tensor, x: Tensor) -> bool:
    if not y.requires_grad:
        return False
    (derivative,) = torch.autograd.grad(y.square().sum(), x, allow_unused=True)
    return derivative is not None and bool(derivative.any())


def test_a_linear_op_has_a_constant_gradient() -> None:
    x, weight = torch.ones(3, K).bfloat16().requires_grad_(), torch.ones(N, K).bfloat16()
    (dx,) = torch.autograd.grad(ops.fused_gemm(x, weight).sum(), x, create_graph=True)
    assert not dx.requires_grad


def test_many_gradients_at_once() -> None:
    """As torch.autograd.functional.jacobian asks for them, by vmap."""
    x, weight = torch.randn(3, K).bfloat16().requires_grad_(), torch.randn(N, K).bfloat16()
    for activation in ("gelu", "gelu_tanh", "mish", "softplus"):
        y = ops.fused_gemm(x, weight, activation=activation)
        towards = torch.randn(4, *y.shape).bfloat16()
        (found,) = torch.autograd.grad(y, x, towards, is_grads_batched=True, retain_graph=True)
        for got, grad in zip(found, towards, strict=True):
            torch.testing.assert_close(got, torch.autograd.grad(y, x, grad, retain_graph=True)[0])


@pytest.mark.parametrize("value", [-torch.inf, torch.inf, torch.nan, 0.0])
def test_infinities_are_those_of_torch(value: float) -> None:
    row = torch.full((N,), -torch.inf)
    row[3] = value
    x, weight = torch.zeros(3, K).to(BF16), torch.zeros(N, K).to(BF16)
    ours, theirs = row.clone().requires_grad_(), row.clone().requires_grad_()
    ops.fused_gemm_logsumexp(x, weight, ours).sum().backward()
    torch.logsumexp(torch.zeros(3, N) + theirs, -1).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)


@every_case
def test_errors_name_the_argument(case: Case) -> None:
    arguments = arguments_of(case)
    for name in differentiable(case, arguments):
        given = leaves(arguments, wanted=differentiable(case, arguments))
        with pytest.raises(ShapeError, match=f"^{case.op.__name__}: "):
            case(given | {name: given[name][..., :-1]})
        with pytest.raises(ArgumentError, match=f"^{case.op.__name__}: {name} is of type int"):
            case(given | {name: 3})


@every_case
def test_backward_under_autocast(case: Case) -> None:
    arguments = arguments_of(case)
    given = leaves(arguments, wanted=differentiable(case, arguments))
    wanted = gradients(case(given), given)
    with torch.autocast("cpu", torch.float16):
        found = gradients(case(given), given)
    for name, g in found.items():
        assert torch.equal(g, wanted[name])


@every_case
def test_autocast_converts_the_factors(case: Case) -> None:
    arguments = arguments_of(case, other=FP32)
    names = differentiable(case, arguments)
    given = leaves(arguments, wanted=names)
    wanted = gradients(case(given), given)
    single = {n: t.float() if n in ("x", *case.weights) else t for n, t in arguments.items()}
    for whole in (("x", *case.weights), case.weights, ("x",)):
        mixed = leaves(arguments | {n: single[n] for n in whole}, wanted=names)
        with torch.autocast("cpu", BF16):
            results = case(mixed)
            with torch.no_grad():
                case(mixed)
                assert all(torch.equal(y, z) for y, z in zip(case(mixed), results, strict=True))
        for name, g in gradients(results, mixed).items():
            assert torch.equal(g, wanted[name])


@every_case
def test_autocast_is_not_remembered(case: Case) -> None:
    """The same call outside of autocast stays an error, and inside one is right after it."""
    arguments = arguments_of(case)
    mixed = arguments | {case.weights[-1]: arguments[case.weights[-1]].float()}
    with torch.no_grad():
        wanted = case(arguments)
        for _ in range(2):
            with pytest.raises(DTypeError, match=f"{case.op.__name__}: {case.weights[-1]} is torch.float32"):
                case(mixed)
            with torch.autocast("cpu", BF16):
                assert all(torch.equal(y, z) for y, z in zip(case(mixed), wanted, strict=True))
                with pytest.raises(ShapeError, match="weight"):
                    case(mixed | {case.weights[-1]: mixed[case.weights[-1]][:, :-1]})


def test_gradients_of_meta_tensors() -> None:
    given = leaves({name: t.to("meta") for name, t in arguments_of(BY_NAME["gemm gelu"]).items()})
    (y,) = BY_NAME["gemm gelu"](given)
    y.sum().backward()
    assert all(t.grad.shape == t.shape and t.grad.dtype is t.dtype for t in given.values())


@every_case
def test_checkpointed(case: Case) -> None:
    arguments = arguments_of(case)
    given = leaves(arguments, wanted=differentiable(case, arguments))
    wanted = gradients(case(given), given)
    results = torch.utils.checkpoint.checkpoint(lambda t: case(t), given, use_reentrant=False)
    for name, g in gradients(results, given).items():
        assert torch.equal(g, wanted[name])


def _saved(function: Callable[[], Any]) -> list[Tensor]:
    tensors: list[Tensor] = []

    def keep(t: Tensor) -> Tensor:
        tensors.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        function()
    return tensors


_TILE = 12 * N * 2


@pytest.mark.parametrize(
    "name, kept",
    [
        ("gemm", 0),
        ("gemm gelu", _TILE),
        ("gemm relu", _TILE),  # with a residual
        ("layernorm all", _TILE + 12 * 4 * 2 + 2 * N * 2),
        ("rmsnorm before", _TILE + 12 * 4 + N * 2),
        ("softmax all", _TILE),
        ("logsumexp", 12 * 4),
        ("gated", 2 * _TILE),
        ("colsum", 0),
    ],
)
def test_what_is_kept(name: str, kept: int) -> None:
    """Bytes besides x and the weights."""
    case = BY_NAME[name]
    arguments = arguments_of(case)
    given = leaves(arguments)
    factors = {given[name].data_ptr() for name in ("x", *case.weights)}
    saved = _saved(lambda: case(given))
    assert sum(t.nbytes for t in saved if t.data_ptr() not in factors) == kept


def test_a_cross_entropy_keeps_no_logits() -> None:
    given = leaves(arguments_of(CROSS_ENTROPIES[0]), wanted=["x", "weight"])
    loss = [t for t in _saved(lambda: CROSS_ENTROPIES[0](given)) if t.dtype is FP32]
    assert [t.shape for t in loss] == [(2, 6)]
