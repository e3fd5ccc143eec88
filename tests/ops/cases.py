"""Every named op with some of its arguments, and what it computes in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import ops

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
N, K = 48, 32
# Half a unit in the last place: one rounding.
ROUNDING = {BF16: 2.0**-8, FP16: 2.0**-11, FP32: 2.0**-18, torch.float8_e4m3fn: 2.0**-4}


def _same(*results: Tensor) -> tuple[Tensor, ...]:
    return results


@dataclass(frozen=True)
class Case:
    """An op, its optional arguments by their spaces, and its meaning.

    ``read`` is what is compared with ``expected``, out of the results.  ``dtypes`` are those of the results;
    None is x's.
    """

    name: str
    op: Callable[..., Any]
    expected: Callable[..., Any]
    rows: tuple[str, ...] = ()
    tiles: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    weights: tuple[str, ...] = ("weight",)
    dtypes: tuple[torch.dtype | None, ...] = (None,)
    read: Callable[..., tuple[Tensor, ...]] = _same

    def arguments(self, lead: tuple[int, ...], dtype: torch.dtype, other: torch.dtype) -> dict[str, Tensor]:
        torch.manual_seed(0)
        tensors = {"x": torch.randn(*lead, K).to(dtype)}
        tensors |= {name: torch.randn(N, K).to(dtype) for name in self.weights}
        tensors |= {name: (torch.randn(*lead, N) * 3).to(other) for name in self.tiles}
        return tensors | {name: torch.randn(N).to(other) for name in self.rows}

    def __call__(self, arguments: dict[str, Any]) -> tuple[Tensor, ...]:
        results = self.op(**arguments, **self.options)
        return results if isinstance(results, tuple) else (results,)

    def reference(self, arguments: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The results in float64, with gradients."""
        doubles = {name: t.double() if t.is_floating_point() else t for name, t in arguments.items()}
        results = self.expected(**doubles, **self.options)
        return results if isinstance(results, tuple) else (results,)

    def check(self, got: tuple[Tensor, ...], arguments: dict[str, Tensor], least: float = 0.0) -> None:
        """``least``: an error of so much, relative to the norm, is accepted of any dtype."""
        assert [t.dtype for t in got] == [dtype or arguments["x"].dtype for dtype in self.dtypes]
        roundings = [ROUNDING[t.dtype] for t in got]
        for y, wanted, rounding in zip(self.read(*got), self.reference(arguments), roundings, strict=True):
            assert y.shape == wanted.shape
            assert (y.double() - wanted).norm() <= max(rounding, least) * wanted.norm()


def linear(
    x: Tensor, weight: Tensor, bias: Any = 0, activation: str | None = None, residual: Any = 0
) -> Tensor:
    return activate(x @ weight.t() + bias, activation) + residual


def activate(z: Tensor, activation: str | None) -> Tensor:
    functions: dict[str | None, Callable[[Tensor], Tensor]] = {
        None: lambda z: z,
        "gelu": F.gelu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
        "silu": F.silu,
        "relu": F.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "mish": F.mish,
        "hardswish": F.hardswish,
        "softplus": lambda z: F.softplus(z, threshold=100.0),
    }
    return functions[activation](z)


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


def softmax(x: Tensor, weight: Tensor, bias: Any = 0, scale: float = 1.0, mask: Any = 0) -> Tensor:
    return torch.softmax((x @ weight.t() + bias) * scale + mask, -1)


def logsumexp(x: Tensor, weight: Tensor, bias: Any = 0) -> Tensor:
    return torch.logsumexp(x @ weight.t() + bias, -1)


def gated(
    x: Tensor,
    weight_gate: Tensor,
    weight_up: Tensor,
    bias_gate: Any = 0,
    bias_up: Any = 0,
    activation: str | None = "silu",
    layout: str = "separate",
) -> Tensor:
    return activate(x @ weight_gate.t() + bias_gate, activation) * (x @ weight_up.t() + bias_up)


def colsum(
    x: Tensor,
    weight: Tensor,
    bias: Any = 0,
    pre_activation: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    y = x @ weight.t() + bias
    if pre_activation is not None:
        pre = pre_activation.detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(activate(pre, activation).sum(), pre)
        y = y * slope
    return y, y.reshape(-1, N).sum(0)


def quantized(
    x: Tensor,
    weight: Tensor,
    bias: Any = 0,
    norm: str | None = None,
    norm_weight: Any = None,
    norm_bias: Any = None,
    eps: float = 1e-5,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """What was quantised, and the scale."""
    y = x @ weight.t() + bias
    if norm == "layernorm":
        y = F.layer_norm(y, (N,), norm_weight, norm_bias, eps)
    elif norm == "rmsnorm":
        y = F.rms_norm(y, (N,), norm_weight, eps)
    return y, y.abs().amax(-1, keepdim=True) / torch.finfo(dtype).max


def dequantize(q: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return q.double() * scale, scale


_LN, _RMS, _GEMM = ops.fused_gemm_layernorm, ops.fused_gemm_rmsnorm, ops.fused_gemm
_GATES = ("weight_gate", "weight_up")
_SUMS = (None, FP32)
_QUANTIZED: dict[str, Any] = {"dtypes": (torch.float8_e4m3fn, FP32), "read": dequantize}

CASES = [
    Case("layernorm", _LN, layer_norm),
    Case("layernorm all", _LN, layer_norm, ("bias", "ln_weight", "ln_bias"), ("residual",), {"eps": 1e-3}),
    Case("layernorm ln_bias", _LN, layer_norm, ("ln_bias",), ("residual",)),
    Case("rmsnorm", _RMS, rms_norm),
    Case("rmsnorm before", _RMS, rms_norm, ("bias", "rms_weight"), ("residual",), {"weight_offset": 1.0}),
    Case(
        "rmsnorm after",
        _RMS,
        rms_norm,
        ("rms_weight",),
        ("residual",),
        {"residual_position": "after", "eps": 1e-2},
    ),
    Case("gemm", _GEMM, linear),
    Case("gemm gelu", _GEMM, linear, ("bias",), ("residual",), {"activation": "gelu"}),
    Case("gemm gelu_tanh", _GEMM, linear, ("bias",), (), {"activation": "gelu_tanh"}),
    Case("gemm silu", _GEMM, linear, (), ("residual",), {"activation": "silu"}),
    Case("gemm relu", _GEMM, linear, ("bias",), ("residual",), {"activation": "relu"}),
    Case("softmax", ops.fused_gemm_softmax, softmax),
    Case("softmax all", ops.fused_gemm_softmax, softmax, ("bias",), ("mask",), {"scale": 0.25}),
    Case("logsumexp", ops.fused_gemm_logsumexp, logsumexp, dtypes=(FP32,)),
    Case("logsumexp bias", ops.fused_gemm_logsumexp, logsumexp, ("bias",), dtypes=(FP32,)),
    Case("gated", ops.fused_gated_gemm, gated, weights=_GATES),
    Case(
        "gated gelu",
        ops.fused_gated_gemm,
        gated,
        ("bias_gate", "bias_up"),
        options={"activation": "gelu"},
        weights=_GATES,
    ),
    Case("colsum", ops.fused_gemm_colsum, colsum, ("bias",), dtypes=_SUMS),
    Case(
        "colsum gelu",
        ops.fused_gemm_colsum,
        colsum,
        (),
        ("pre_activation",),
        {"activation": "gelu"},
        dtypes=_SUMS,
    ),
    Case("quantize", ops.fused_gemm_quantize, quantized, ("bias",), **_QUANTIZED),
    Case(
        "quantize layernorm",
        ops.fused_gemm_quantize,
        quantized,
        ("norm_weight", "norm_bias"),
        options={"norm": "layernorm"},
        **_QUANTIZED,
    ),
    Case(
        "quantize rmsnorm",
        ops.fused_gemm_quantize,
        quantized,
        ("bias", "norm_weight"),
        options={"norm": "rmsnorm", "eps": 1e-3},
        **_QUANTIZED,
    ),
]
BY_NAME = {case.name: case for case in CASES}
