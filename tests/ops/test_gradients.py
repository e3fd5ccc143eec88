"""Gradients of the named ops on CPU tensors, against float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import fallbacks, ops
from comfuse.generator import catalog
from comfuse.ops.autograd.derivatives import FROM_RESULT, times_derivative
from comfuse.reference import ELEMENTWISE
from tests.ops.cases import BF16, FP16, FP32, Case, K, N
from tests.ops.differentiable import CONSTANT, DIFFERENTIABLE, arguments_of, differentiable, every_case
from tests.ops.gradients import Results, check, gradients, leaves

pytestmark = pytest.mark.usefixtures("nothing_falls_back")


def compare(case: Case, arguments: dict[str, Any], wanted: list[str] | None = None) -> dict[str, Tensor]:
    def expected(**given: Any) -> Results:
        results = case.expected(**given, **case.options)
        return results if isinstance(results, tuple) else (results,)

    wanted = differentiable(case, arguments) if wanted is None else wanted
    return check(lambda **given: case(given), expected, arguments, wanted)


@every_case
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_numbers(case: Case, dtype: torch.dtype) -> None:
    compare(case, arguments_of(case, dtype=dtype))
    assert not fallbacks.counts()


@every_case
@pytest.mark.parametrize("lead", [(), (7,), (1, 1, 5), (0,), (2, 0, 3)])
def test_leading_shapes(case: Case, lead: tuple[int, ...]) -> None:
    if case.name == "cross_entropy mean" and 0 in lead:
        return  # 0 / 0
    compare(case, arguments_of(case, lead))


@every_case
@pytest.mark.parametrize("dtype, other", [(BF16, FP32), (FP16, BF16)])
def test_mixed_dtypes(case: Case, dtype: torch.dtype, other: torch.dtype) -> None:
    arguments = arguments_of(case, dtype=dtype, other=other)
    given = leaves(arguments, wanted=differentiable(case, arguments))
    same = leaves({n: t.to(dtype) if t.is_floating_point() else t for n, t in arguments.items()})
    for name in CONSTANT:
        if name in same and same[name].is_floating_point():
            same[name].requires_grad_(False)
    results, others = case(given), case(same)
    found, wanted = gradients(results, given), gradients(others, same)
    for name, g in found.items():
        assert (g - wanted[name]).norm() <= 0.03 * wanted[name].norm(), name
        assert given[name].dtype == arguments[name].dtype


@every_case
def test_what_is_not_asked_is_not_computed(case: Case) -> None:
    arguments = arguments_of(case)
    names = differentiable(case, arguments)
    all_of_them = compare(case, arguments)
    for count in {1, len(names) - 1} - {len(names)}:
        for wanted in itertools.combinations(names, count):
            given = leaves(arguments, wanted=wanted)
            found = gradients(case(given), given)
            assert found.keys() == set(wanted)
            for name, g in found.items():
                assert torch.equal(g, all_of_them[name]), (name, wanted)


class _Counting(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts GEMMs."""

    gemms = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.gemms += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


@every_case
def test_a_gemm_for_each_factor_that_is_asked(case: Case) -> None:
    arguments = arguments_of(case)
    for wanted in (["x"], [case.weights[0]], ["x", case.weights[0]]):
        given = leaves(arguments, wanted=wanted)
        y = case(given)
        with _Counting() as counting:
            gradients(y, given)
        assert counting.gemms == sum(len(case.weights) if name == "x" else 1 for name in wanted)


@pytest.mark.parametrize("case", [c for c in DIFFERENTIABLE if c.tiles], ids=lambda case: case.name)
@pytest.mark.parametrize("shape", [(12, N), (6, N), (1, 6, N), (2, 1, N), (N,), (1, 1, 1), (6, 1)])
def test_tiles_that_are_flat_or_broadcast(case: Case, shape: tuple[int, ...]) -> None:
    arguments = arguments_of(case)
    for name in case.tiles:
        arguments[name] = torch.randn(shape).to(BF16)

    def expected(**given: Any) -> Results:
        for name in case.tiles:
            if shape == (12, N):
                given[name] = given[name].view(2, 6, N)
            else:
                given[name] = given[name].expand(2, 6, N)
        results = case.expected(**given, **case.options)
        return results if isinstance(results, tuple) else (results,)

    check(lambda **given: case(given), expected, arguments, differentiable(case, arguments))


@every_case
def test_tensors_that_are_not_contiguous(case: Case) -> None:
    arguments = arguments_of(case)
    turned = {n: t.t().contiguous().t() if t.ndim == 2 else t for n, t in arguments.items()}
    turned["x"] = turned["x"].transpose(0, 1).contiguous().transpose(0, 1)
    compare(case, turned)


@every_case
def test_gradients_that_are_not_contiguous(case: Case) -> None:
    arguments = arguments_of(case)
    given = leaves(arguments, wanted=differentiable(case, arguments))
    plain = leaves(arguments, wanted=differentiable(case, arguments))
    ys, zs = case(given), case(plain)
    for y, z in zip(ys, zs, strict=True):
        towards = torch.randn(y.shape[::-1]).to(y.dtype).permute(tuple(reversed(range(y.ndim))))
        y.backward(towards, retain_graph=True)
        z.backward(towards.contiguous(), retain_graph=True)
        (y * 1.0).sum().backward(retain_graph=True)  # of strides 0
        z.backward(torch.ones_like(z), retain_graph=True)
    for name in differentiable(case, arguments):
        torch.testing.assert_close(given[name].grad, plain[name].grad, rtol=2e-2, atol=1e-2)


@every_case
def test_no_products(case: Case) -> None:
    arguments = arguments_of(case)
    for name in ("x", *case.weights):
        arguments[name] = arguments[name][..., :0]
    given = leaves(arguments, wanted=differentiable(case, arguments))
    found = gradients(case(given), given)
    assert found["x"].shape == (2, 6, 0)
    assert all(g.isfinite().all() for g in found.values())


# --- activations ---


@pytest.mark.parametrize("activation", catalog.ACTIVATIONS)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_derivatives(activation: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    low, high = _DOMAINS.get(activation, (None, None))
    x = torch.randn(500) * 3 if low is None else low + (high - low) * torch.rand(500)
    x = x.to(dtype)
    grad = torch.randn(500).to(dtype)
    doubles = x.double().requires_grad_()
    y = ELEMENTWISE[activation](doubles)
    wanted = torch.zeros_like(doubles)
    if y.requires_grad:
        (wanted,) = torch.autograd.grad(y, doubles, grad.double())
    bound = 2.0**-8 if dtype is BF16 else 1e-5
    got = times_derivative(activation, grad, x)
    assert got.dtype is dtype
    assert (got.double() - wanted).norm() <= bound * wanted.norm()
    if activation in FROM_RESULT:
        result = times_derivative(activation, grad, ELEMENTWISE[activation](x), result=True)
        assert (result.double() - wanted).norm() <= 8 * bound * wanted.norm()


# Where it is steep, the rounding of x is all that counts.
_DOMAINS = dict.fromkeys(("sqrt", "rsqrt", "reciprocal", "log", "log2", "log1p"), (0.1, 3.1))
_DOMAINS |= dict.fromkeys(("asin", "acos", "atanh"), (-0.9, 0.9)) | {"acosh": (1.1, 4.1)}


@pytest.mark.parametrize("activation", catalog.ACTIVATIONS)
@pytest.mark.parametrize("residual", [False, True])
def test_every_activation(activation: str, residual: bool) -> None:
    torch.manual_seed(0)
    arguments = {
        "x": torch.rand(6, K).to(BF16) + 0.5,
        "weight": torch.rand(N, K).to(BF16) / K,
        "bias": torch.rand(N).to(BF16),
    }
    if activation in ("asin", "acos", "atanh"):
        arguments["x"] *= 0.25
        arguments["bias"] *= 0.25
    elif activation == "acosh":
        arguments["bias"] += 1
    if residual:
        arguments["residual"] = torch.randn(6, N).to(BF16)

    def expected(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Results:
        z = ELEMENTWISE[activation](F.linear(x, weight, bias))
        if not z.requires_grad:  # a step
            z = z + 0 * (x.sum() + weight.sum() + bias.sum())
        return (z if residual is None else z + residual,)

    check(lambda **given: (ops.fused_gemm(**given, activation=activation),), expected, arguments)
