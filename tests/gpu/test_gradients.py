"""Gradients of the named ops on CUDA tensors at sizes of real models, beside torch's own and float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import ops
from comfuse.generator.spec import FusedSpec
from comfuse.ops import named
from tests.gpu.test_named_ops import Draw
from tests.gpu.test_ops import no_fallback  # noqa: F401
from tests.ops.gradients import Arguments, Results, check, gradients, leaves

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "no_fallback")]

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
M = 2500


@dataclass(frozen=True)
class GradientCase:
    """``op(**arguments(draw))`` and the same in torch's own ops, for every dtype."""

    name: str
    k: int
    arguments: Callable[[Draw], Arguments]
    op: Callable[..., Any]
    reference: Callable[..., Any]

    def __str__(self) -> str:
        return self.name


def _flat(result: Any) -> Results:
    return result if isinstance(result, tuple) else (result,)


def _like(y: Tensor, row: Tensor | None) -> Tensor | None:
    """A row in y's dtype, which torch's norms want."""
    return None if row is None else row.to(y.dtype)


def _layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, ln_weight: Tensor, ln_bias: Tensor
) -> Tensor:
    y = F.linear(x, weight, bias) + residual
    return F.layer_norm(y, y.shape[-1:], _like(y, ln_weight), _like(y, ln_bias), 1e-5)


def _rms_norm(offset: float, before: bool) -> Callable[..., Tensor]:
    def reference(x: Tensor, weight: Tensor, residual: Tensor, rms_weight: Tensor) -> Tensor:
        y = F.linear(x, weight) + (residual if before else 0)
        y = F.rms_norm(y, y.shape[-1:], rms_weight + offset, 1e-6)
        return y if before else y + residual

    return reference


def _rms_op(offset: float, before: bool) -> Callable[..., Tensor]:
    where = "before" if before else "after"

    def op(x: Tensor, weight: Tensor, residual: Tensor, rms_weight: Tensor) -> Tensor:
        return ops.fused_gemm_rmsnorm(
            x, weight, None, residual, rms_weight, weight_offset=offset, residual_position=where
        )

    return op


def _norm_arguments(row: torch.dtype) -> Callable[[Draw], Arguments]:
    return lambda d: {
        "x": d.normal(d.m, d.k), "weight": d.weight(1024), "bias": d.normal(1024),
        "residual": d.normal(d.m, 1024), "ln_weight": d.normal(1024, dtype=row),
        "ln_bias": d.normal(1024, dtype=row)}  # fmt: skip


def _rms_arguments(d: Draw) -> Arguments:
    return {
        "x": d.normal(d.m, d.k), "weight": d.weight(2048), "residual": d.normal(d.m, 2048),
        "rms_weight": d.normal(2048)}  # fmt: skip


def _cross_entropy_arguments(d: Draw) -> Arguments:
    target = d.whole(5003)
    target[::3] = -100
    return {"x": d.normal(d.m, d.k), "weight": d.weight(5003), "target": target, "bias": d.normal(5003)}


def _cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight, bias), target)


def _softmax(x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(F.linear(x, weight) * 0.25 + mask, -1)


CASES = (
    GradientCase("layernorm", 4096, _norm_arguments(BF16), ops.fused_gemm_layernorm, _layer_norm),
    GradientCase("layernorm_float_rows", 1024, _norm_arguments(FP32), ops.fused_gemm_layernorm, _layer_norm),
    *(GradientCase(f"rmsnorm_{offset}_{before}", 1024, _rms_arguments, _rms_op(offset, before),
                   _rms_norm(offset, before)) for offset, before in ((0.0, True), (1.0, False))),
    GradientCase("gelu", 1024, lambda d: {
        "x": d.normal(d.m, d.k), "weight": d.weight(4096), "bias": d.normal(4096)},
        lambda **t: ops.fused_gemm(**t, activation="gelu"),
        lambda x, weight, bias: F.gelu(F.linear(x, weight, bias))),
    GradientCase("relu", 1024, lambda d: {
        "x": d.normal(d.m, d.k, dtype=FP16), "weight": d.weight(4096, FP16)},
        lambda **t: ops.fused_gemm(**t, activation="relu"),
        lambda x, weight: F.relu(F.linear(x, weight))),
    GradientCase("gated", 2048, lambda d: {
        "x": d.normal(d.m, d.k), "weight_gate": d.weight(2 * 5632)},
        ops.fused_gated_gemm,
        lambda x, weight_gate: F.silu(F.linear(x, weight_gate[:5632])) * F.linear(x, weight_gate[5632:])),
    GradientCase("softmax", 1024, lambda d: {
        "x": d.normal(d.m, d.k), "weight": d.weight(1000), "mask": d.normal(d.m, 1000)},
        lambda **t: ops.fused_gemm_softmax(**t, scale=0.25), _softmax),
    GradientCase("logsumexp", 1024, lambda d: {"x": d.normal(d.m, d.k), "weight": d.weight(5003)},
        ops.fused_gemm_logsumexp, lambda x, weight: torch.logsumexp(F.linear(x, weight), -1)),
    GradientCase("cross_entropy", 1024, _cross_entropy_arguments, ops.fused_gemm_cross_entropy,
                 _cross_entropy),
)  # fmt: skip


def specs_ahead() -> list[FusedSpec]:
    """What the calls, and the backwards, make of the same arguments on a CPU."""
    before = {op: set(found.texts.values()) for op, found in named._OPS.items()}
    for case in CASES:
        given = leaves(case.arguments(Draw(1, case.k, "cpu")))
        gradients(_flat(case.op(**given)), given)
    new = [t for op, found in named._OPS.items() for t in found.texts.values() if t not in before[op]]
    return [FusedSpec.parse(text) for text in new]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: GradientCase) -> None:
    check(
        lambda **given: _flat(case.op(**given)),
        lambda **given: _flat(case.reference(**given)),
        case.arguments(Draw(M, case.k, "cuda")),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_rows(case: GradientCase) -> None:
    if case.name == "cross_entropy":
        return  # a mean of nothing is NaN
    given = leaves(case.arguments(Draw(0, case.k, "cuda")))
    for name, g in gradients(_flat(case.op(**given)), given).items():
        assert g.shape == given[name].shape
        assert bool((g == 0).all())


@pytest.mark.parametrize("name", ["layernorm", "gelu"])
def test_a_second_backward_is_bit_identical(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    given = leaves(case.arguments(Draw(M, case.k, "cuda")))
    first, second = (gradients(_flat(case.op(**given)), given) for _ in range(2))
    for tensor, g in first.items():
        if tensor not in ("ln_weight", "ln_bias"):  # torch's own sums, in an order of its own
            assert torch.equal(g, second[tensor]), tensor
