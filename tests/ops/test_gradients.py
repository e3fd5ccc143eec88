"""Gradients of the named ops on CPU tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from comfuse import fallbacks, ops
from comfuse.errors import ArgumentError, GradientError, ShapeError
from comfuse.generator import catalog
from comfuse.generator.spec import DType, FusedSpec
from comfuse.ops.autograd.derivatives import FROM_RESULT, times_derivative
from comfuse.ops.autograd.layernorm import of_norm as of_layer_norm
from comfuse.ops.autograd.rmsnorm import of_norm as of_rms_norm
from comfuse.ops.schema import GENERAL
from comfuse.reference import ELEMENTWISE
from tests.ops.cases import BF16, BY_NAME, CASES, FP16, FP32, Case, K, N
from tests.ops.gradients import Results, check, gradients, leaves


def _cross_entropy(reduction: str) -> Case:
    def expected(x: Tensor, weight: Tensor, target: Tensor, bias: Any = 0, **options: Any) -> Tensor:
        z = x @ weight.t() + bias
        loss = F.cross_entropy(z.reshape(-1, N), target.reshape(-1), **options)
        return loss.view(target.shape) if reduction == "none" else loss

    options = {"ignore_index": 5, "reduction": reduction}
    op = ops.fused_gemm_cross_entropy
    return Case(f"cross_entropy {reduction}", op, expected, ("bias",), options=options, dtypes=(FP32,))


_CROSS_ENTROPIES = [_cross_entropy(reduction) for reduction in ("none", "sum", "mean")]
DIFFERENTIABLE = [case for case in CASES if case.op is not ops.fused_gemm_quantize] + _CROSS_ENTROPIES
every_case = pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda case: case.name)
_CONSTANT = ("pre_activation", "target")  # have no gradient


@pytest.fixture(autouse=True)
def nothing_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "1")


def arguments_of(
    case: Case, lead: tuple[int, ...] = (2, 6), dtype: torch.dtype = BF16, other: torch.dtype | None = None
) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(case.arguments(lead, dtype, other or dtype))
    if case in _CROSS_ENTROPIES:
        arguments["target"] = torch.arange(torch.Size(lead).numel()).view(lead) % N
    return arguments


def differentiable(case: Case, arguments: dict[str, Any]) -> list[str]:
    return [name for name in arguments if name not in _CONSTANT]


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
    for name in _CONSTANT:
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
    x = (torch.rand(500) * 3 + 0.1).to(dtype) if activation in _POSITIVE else (torch.randn(500) * 3).to(dtype)
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


_POSITIVE = ("sqrt", "rsqrt", "reciprocal", "log", "log2", "log1p")


@pytest.mark.parametrize("activation", catalog.ACTIVATIONS)
@pytest.mark.parametrize("residual", [False, True])
def test_every_activation(activation: str, residual: bool) -> None:
    torch.manual_seed(0)
    arguments = {
        "x": torch.rand(6, K).to(BF16) + 0.5,
        "weight": torch.rand(N, K).to(BF16) / K,
        "bias": torch.rand(N).to(BF16),
    }
    if residual:
        arguments["residual"] = torch.randn(6, N).to(BF16)

    def expected(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Results:
        z = ELEMENTWISE[activation](F.linear(x, weight, bias))
        if not z.requires_grad:  # a step
            z = z + 0 * (x.sum() + weight.sum() + bias.sum())
        return (z if residual is None else z + residual,)

    check(lambda **given: (ops.fused_gemm(**given, activation=activation),), expected, arguments)


# --- what has no gradient ---


def test_quantised_values_have_none() -> None:
    case = BY_NAME["quantize"]
    with pytest.raises(GradientError, match=r"fused_gemm_quantize: .* torch.no_grad\(\)"):
        case(leaves(case.arguments((3,), BF16, BF16)))


def test_what_an_activation_read_on_the_way_back_has_none() -> None:
    case = BY_NAME["colsum gelu"]
    with pytest.raises(GradientError, match=r"fused_gemm_colsum: pre_activation .* detached"):
        case(leaves(case.arguments((3,), BF16, BF16), wanted=["pre_activation"]))


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
def test_errors_name_the_argument(case: Case) -> None:
    arguments = arguments_of(case)
    for name in differentiable(case, arguments):
        given = leaves(arguments, wanted=differentiable(case, arguments))
        with pytest.raises(ShapeError, match=f"^{case.op.__name__}: "):
            case(given | {name: given[name][..., :-1]})
        with pytest.raises(ArgumentError, match=f"^{case.op.__name__}: {name} is of type int"):
            case(given | {name: 3})


# --- beside torch's own machinery ---


@pytest.mark.parametrize("bias", [None, DType.FP32])
def test_opcheck_of_the_kernels(bias: DType | None) -> None:
    x, weight, target = (
        torch.randn(2, 3, K).to(BF16),
        torch.randn(N, K).to(BF16),
        torch.tensor([[0, 1, N - 1]] * 2),
    )
    rows = [] if bias is None else [torch.randn(N)]
    half, wide = DType.BF16, DType.INT64
    lse, grad = torch.randn(2, 3), torch.randn(2, 3)
    calls: list[tuple[FusedSpec, list[Tensor], list[float]]] = [
        (catalog.linear(N, K, half, bias=bias, activation="silu", saved=True), rows, []),
        (catalog.layernorm(N, K, half, bias=bias, saved=True), rows, [1e-5]),
        (catalog.rmsnorm(N, K, half, bias=bias, saved=True), rows, [1e-5]),
        (catalog.gated(N, K, half, bias_up=bias, saved=True), [weight, *rows], []),
        (catalog.cross_entropy(N, K, half, bias=bias, saved=True), [target, *rows], [-100.0]),
        (catalog.logits_gradient(N, K, half, bias=bias, sums=True), [*rows, lse, grad], []),
        (catalog.logits_gradient(N, K, half, bias=bias, target=wide), [*rows, target, lse, grad], []),
    ]
    for spec, operands, scalars in calls:
        torch.library.opcheck(GENERAL, (spec.text(), x, weight, operands, scalars))


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
                assert all(torch.equal(y, z) for y, z in zip(case(mixed), results, strict=True))
        for name, g in gradients(results, mixed).items():
            assert torch.equal(g, wanted[name])


@every_case
def test_checkpointed(case: Case) -> None:
    arguments = arguments_of(case)
    given = leaves(arguments, wanted=differentiable(case, arguments))
    wanted = gradients(case(given), given)
    results = torch.utils.checkpoint.checkpoint(lambda t: case(t), given, use_reentrant=False)
    for name, g in gradients(results, given).items():
        assert torch.equal(g, wanted[name])


def test_compiled_under_autocast() -> None:
    case = BY_NAME["layernorm all"]
    arguments = {name: t.float() for name, t in arguments_of(case).items()}
    torch.compiler.reset()
    compiled = torch.compile(lambda t: case(t), fullgraph=True, backend="aot_eager")
    found = []
    for function in (case, compiled):
        given = leaves(arguments)
        with torch.autocast("cpu", BF16):
            results = function(given)
        assert results[0].dtype is BF16
        found.append(gradients(results, given))
    for name, g in found[1].items():
        assert (g - found[0][name]).norm() <= 2.0**-7 * g.norm(), name


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
    "name, options, kept",
    [
        ("gemm", {}, 0),
        ("gemm gelu", {}, _TILE),
        ("gemm relu", {}, _TILE),  # with a residual
        ("layernorm all", {}, _TILE + 12 * 4 * 2 + 2 * N * 2),
        ("rmsnorm before", {}, _TILE + 12 * 4 + N * 2),
        ("softmax all", {}, _TILE),
        ("logsumexp", {}, 12 * 4),
        ("gated", {}, 2 * _TILE),
        ("colsum", {}, 0),
    ],
)
def test_what_is_kept(name: str, options: dict[str, Any], kept: int) -> None:
    """Bytes besides x and the weights."""
    case = BY_NAME[name]
    arguments = arguments_of(case)
    given = leaves(arguments)
    factors = {given[name].data_ptr() for name in ("x", *case.weights)}
    saved = _saved(lambda: case(given))
    assert sum(t.nbytes for t in saved if t.data_ptr() not in factors) == kept


def test_a_cross_entropy_keeps_no_logits() -> None:
    given = leaves(arguments_of(_CROSS_ENTROPIES[0]), wanted=["x", "weight"])
    loss = [t for t in _saved(lambda: _CROSS_ENTROPIES[0](given)) if t.dtype is FP32]
    assert [t.shape for t in loss] == [(2, 6)]


@every_case
def test_compiled(case: Case) -> None:
    compiled_as_eager(case, dynamic=False)


@pytest.mark.parametrize("name", ["layernorm all", "rmsnorm after", "gemm gelu", "softmax all", "gated gelu"])
def test_compiled_for_any_shape(name: str) -> None:
    compiled_as_eager(BY_NAME[name], dynamic=True)


@pytest.mark.slow
def test_compiled_by_inductor() -> None:
    compiled_as_eager(BY_NAME["layernorm all"], dynamic=False, backend="inductor")


def compiled_as_eager(case: Case, dynamic: bool, backend: str = "aot_eager") -> None:
    arguments = arguments_of(case)
    given = leaves(arguments, wanted=differentiable(case, arguments))
    wanted = gradients(case(given), given)
    torch.compiler.reset()
    compiled = torch.compile(lambda t: case(t), fullgraph=True, dynamic=dynamic, backend=backend)
    found = gradients(compiled(given), given)
    assert found.keys() == wanted.keys()
    for name, g in found.items():
        assert (g - wanted[name]).norm() <= 2.0**-7 * wanted[name].norm(), name
    assert not fallbacks.counts()


# --- what runs on CUDA, by shapes and dtypes ---


@pytest.mark.parametrize("row", [None, BF16, FP32])
@pytest.mark.parametrize("of_rows", [False, True])
def test_norms_of_cuda_tensors(row: torch.dtype | None, of_rows: bool) -> None:
    with FakeTensorMode():
        grad = torch.empty(1, device="cuda", dtype=BF16).expand(2, 6, N)
        pre = torch.empty(2, 6, N, device="cuda", dtype=BF16)
        mean = rstd = torch.empty(2, 6, device="cuda")
        weight = None if row is None else torch.empty(N, device="cuda", dtype=row)
        of_rows = of_rows and weight is not None
        asked = [True, of_rows, of_rows]
        for offset in (0.0, 1.0):
            d, d_weight = of_rms_norm(grad, pre, rstd, weight, offset, asked[:2])
            assert (d.shape, d.dtype, d.device.type) == (pre.shape, BF16, "cuda")
            assert not of_rows or d_weight.shape == (N,)
        d, *rows = of_layer_norm(grad, pre, mean, rstd, weight, weight, asked)
        assert (d.shape, d.dtype, d.device.type) == (pre.shape, BF16, "cuda")
        assert not of_rows or [t.shape for t in rows] == [(N,), (N,)]
