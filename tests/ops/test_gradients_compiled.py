"""Gradients of the named ops under torch.compile, and what they are made of as tracing sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from comfuse import fallbacks, ops
from comfuse.generator import catalog
from comfuse.generator.spec import DType, FusedSpec
from comfuse.ops.autograd.layernorm import of_norm as of_layer_norm
from comfuse.ops.autograd.rmsnorm import of_norm as of_rms_norm
from comfuse.ops.schema import GENERAL
from tests.ops.cases import BF16, BY_NAME, FP32, Case, K, N
from tests.ops.differentiable import arguments_of, differentiable, every_case
from tests.ops.gradients import gradients, leaves

pytestmark = pytest.mark.usefixtures("nothing_falls_back")


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


@every_case
def test_compiled(case: Case) -> None:
    compiled_as_eager(case, dynamic=False)


@pytest.mark.parametrize("name", ["layernorm all", "rmsnorm after", "gemm gelu", "softmax all", "gated gelu"])
def test_compiled_for_any_shape(name: str) -> None:
    compiled_as_eager(BY_NAME[name], dynamic=True)


@pytest.mark.slow
def test_compiled_by_inductor() -> None:
    compiled_as_eager(BY_NAME["layernorm all"], dynamic=False, backend="inductor")


WIDE = 2 * K
TWICE: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], str]] = {
    "gemm": (lambda x, w, r: ops.fused_gemm(x, w, activation="gelu", residual=r), ((K, K),), "x"),
    "layernorm": (lambda x, w, r: ops.fused_gemm_layernorm(x, w, residual=r), ((K, K),), "x"),
    "rmsnorm": (lambda x, w, r: ops.fused_gemm_rmsnorm(x, w, residual=r), ((K, K),), "x"),
    "gated": (lambda x, w, r: ops.fused_gated_gemm(x, w, r, activation="silu"), ((N, K),), "weight"),
    "b2b": (
        lambda x, w, w1, r: ops.fused_b2b_gemm(x, w, w1, activation0="gelu", residual1=r),
        ((WIDE, K), (K, WIDE)),
        "x",
    ),
    "mlp": (
        lambda x, w, w1, r: ops.fused_mlp(x, w, w1=w1, residual=r, norm="layernorm"),
        ((WIDE, K), (K, WIDE)),
        "x",
    ),
}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("recompute", ["always", "never"])
def test_one_tensor_in_two_places(name: str, recompute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient is the sum of those that two tensors would have."""
    monkeypatch.setenv("COMFUSE_RECOMPUTE", recompute)
    op, shapes, twice = TWICE[name]
    torch.manual_seed(0)
    drawn = [torch.randn(4, K), *(torch.randn(shape) / shape[1] ** 0.5 for shape in shapes)]
    given = dict(zip(("x", "weight", "further"), (t.to(BF16) for t in drawn), strict=False))
    apart = leaves(given | {"again": given[twice]})
    wanted = gradients((op(*apart.values()),), apart)
    wanted[twice] += wanted.pop("again")
    same = leaves(given)
    torch.compiler.reset()
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    for function in (op, compiled):
        found = gradients((function(*same.values(), same[twice]),), same)
        for argument, g in found.items():
            assert (g - wanted[argument]).norm() <= 2.0**-7 * wanted[argument].norm(), argument
    assert not fallbacks.counts()


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
