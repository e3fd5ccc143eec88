"""The named ops beyond linear layers and norms, on CUDA tensors, against float64."""

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
from comfuse.reference.accuracy import relative_error, tolerance, weighty
from tests.gpu.outputs import poison_allocator
from tests.gpu.test_ops import no_fallback  # noqa: F401

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "no_fallback")]

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Arguments = dict[str, Any]


class Draw:
    """Random tensors for calls with ``m`` rows."""

    def __init__(self, m: int, k: int, device: str) -> None:
        self.m, self.k, self.device = m, k, device
        self.generator = torch.Generator(device).manual_seed(m)

    def normal(self, *size: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(size, device=self.device, generator=self.generator).to(dtype)

    def weight(self, n: int, dtype: torch.dtype = BF16) -> Tensor:
        return (self.normal(n, self.k, dtype=FP32) / self.k**0.5).to(dtype)

    def whole(self, below: int) -> Tensor:
        return torch.randint(below, (self.m,), device=self.device, generator=self.generator)


@dataclass(frozen=True)
class NamedCase:
    """``arguments(draw)`` of a call of ``op``; ``reference(**doubles)`` gives what it returns, in float64."""

    name: str
    op: Callable[..., Any]
    arguments: Callable[[Draw], Arguments]
    reference: Callable[..., Any]

    def __str__(self) -> str:
        return self.name


def _softmax(x: Tensor, weight: Tensor, bias: Tensor, scale: float, mask: Tensor) -> Tensor:
    z = F.linear(x, weight, bias) * scale
    return torch.softmax(z.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else z + mask, -1)


def _losses(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    return F.cross_entropy(F.linear(x, weight, bias), target, ignore_index=ignore_index, reduction=reduction)


def _target(d: Draw, n: int) -> Tensor:
    target = d.whole(n)
    target[::3] = -7
    return target


def _normed(
    x: Tensor, weight: Tensor, norm: str | None = None, norm_weight: Tensor | None = None, **_: Any
) -> Tensor:
    y = F.linear(x, weight)
    if norm == "layernorm":
        return F.layer_norm(y, y.shape[-1:], norm_weight, None, 1e-5)
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * norm_weight if norm else y


def _quantised(largest: float) -> Callable[..., tuple[Tensor, Tensor]]:
    def reference(**arguments: Any) -> tuple[Tensor, Tensor]:
        y = _normed(**arguments)
        scale = y.abs().amax(-1, keepdim=True) / largest
        return y / scale, scale

    return reference


def _gated(layout: str) -> Callable[..., Tensor]:
    def reference(x: Tensor, weight_gate: Tensor, **rest: Any) -> Tensor:
        gate, up = weight_gate, rest.get("weight_up")
        if layout == "stacked":
            gate, up = weight_gate.chunk(2)
        elif layout == "interleaved":
            gate, up = weight_gate[::2], weight_gate[1::2]
        return F.gelu(F.linear(x, gate)) * F.linear(x, up)

    return reference


def _column_sum(x: Tensor, weight: Tensor, pre_activation: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    y = torch.ops.aten.gelu_backward(F.linear(x, weight), pre_activation)
    return y, y.sum(0)


def _gate_arguments(layout: str) -> Callable[[Draw], Arguments]:
    def arguments(d: Draw) -> Arguments:
        weights = {"weight_gate": d.weight(400 if layout != "separate" else 200)}
        if layout == "separate":
            weights["weight_up"] = d.weight(200)
        return {"x": d.normal(d.m, d.k), **weights, "activation": "gelu", "layout": layout}

    return arguments


CASES = (
    NamedCase("softmax_added_mask", ops.fused_gemm_softmax, lambda d: {
        "x": d.normal(d.m, d.k), "weight": d.weight(200), "bias": d.normal(200), "scale": 0.5,
        "mask": d.normal(d.m, 200, dtype=FP32)}, _softmax),
    NamedCase("softmax_bool_mask", ops.fused_gemm_softmax, lambda d: {
        "x": d.normal(d.m, d.k, dtype=FP16), "weight": d.weight(1000, FP16),
        "bias": d.normal(1000, dtype=FP16),
        "scale": 2.0, "mask": d.normal(d.m, 1000) > -1}, _softmax),
    NamedCase("logsumexp", ops.fused_gemm_logsumexp, lambda d: {
        "x": d.normal(d.m, d.k), "weight": d.weight(32000)},
        lambda x, weight: torch.logsumexp(F.linear(x, weight), -1)),
    *(NamedCase(f"cross_entropy_{r}", ops.fused_gemm_cross_entropy, lambda d, r=r: {
        "x": d.normal(d.m, d.k), "weight": d.weight(5003), "target": _target(d, 5003), "bias": d.normal(5003),
        "ignore_index": -7, "reduction": r}, _losses) for r in ("none", "sum")),
    NamedCase("quantize", ops.fused_gemm_quantize, lambda d: {
        "x": d.normal(d.m, d.k), "weight": d.weight(520)}, _quantised(448.0)),
    NamedCase("quantize_e5m2", ops.fused_gemm_quantize, lambda d: {
        "x": d.normal(d.m, d.k), "weight": d.weight(200), "dtype": E5M2}, _quantised(57344.0)),
    *(NamedCase(f"quantize_{n}", ops.fused_gemm_quantize, lambda d, n=n: {
        "x": d.normal(d.m, d.k), "weight": d.weight(520), "norm": n, "norm_weight": d.normal(520)},
        _quantised(448.0)) for n in ("layernorm", "rmsnorm")),
    *(NamedCase(f"gated_{x}", ops.fused_gated_gemm, _gate_arguments(x), _gated(x))
      for x in ("separate", "stacked", "interleaved")),
    NamedCase("colsum", ops.fused_gemm_colsum, lambda d: {
        "x": d.normal(d.m, d.k), "weight": d.weight(200).t().contiguous().t(),
        "pre_activation": d.normal(d.m, 200), "activation": "gelu"}, _column_sum),
)  # fmt: skip


def specs_ahead() -> list[FusedSpec]:
    """What the calls make of the same arguments on a CPU."""
    before = {op: set(found.texts.values()) for op, found in named._OPS.items()}
    for case in CASES:
        case.op(**case.arguments(Draw(1, 72, "cpu")))
    new = [t for op, found in named._OPS.items() for t in found.texts.values() if t not in before[op]]
    return [FusedSpec.parse(text) for text in new]


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _flat(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: NamedCase) -> None:
    for m in (1, 129, 1000):
        arguments = case.arguments(Draw(m, 72, "cuda"))
        poison_allocator(*(x for x in _flat(case.op(**arguments)) if x.element_size() > 1))
        outputs = _flat(case.op(**arguments))
        references = _flat(case.reference(**{name: _double(x) for name, x in arguments.items()}))
        for output, reference in zip(outputs, references, strict=True):
            assert output.shape == reference.shape
            error, allowed = relative_error(output, reference), tolerance(output.dtype, weighty(reference))
            assert error <= allowed, f"M = {m}, {output.dtype}: error {error:.2e}, {allowed:.2e} allowed"
