"""The derivative of each activation, times the gradient of its result."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from comfuse.reference import ELEMENTWISE

aten = torch.ops.aten

#: Activations whose derivative is told by their result, so that nothing else has to be kept for it.
FROM_RESULT = frozenset({"relu", "sigmoid", "tanh"})

# One kernel each, computed in float32 within.  The gradient comes first; then what the activation read, or
# for those of FROM_RESULT what it gave.
_KERNELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, y: aten.threshold_backward(grad, y, 0),
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
    "gelu": aten.gelu_backward,
    "gelu_tanh": partial(aten.gelu_backward, approximate="tanh"),
    "silu": aten.silu_backward,
    "mish": aten.mish_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardswish": aten.hardswish_backward,
}


def _quick_gelu(x: Tensor) -> Tensor:
    gate = torch.sigmoid(1.702 * x)
    return gate * (1 + 1.702 * x * (1 - gate))


# The derivative alone, of a float32 tensor.
_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": lambda x: -torch.ones_like(x),
    "abs": torch.sign,
    "square": lambda x: 2 * x,
    "sqrt": lambda x: 0.5 * torch.rsqrt(x),
    "rsqrt": lambda x: -0.5 * torch.rsqrt(x) / x,
    "reciprocal": lambda x: -torch.square(torch.reciprocal(x)),
    "exp": torch.exp,
    "exp2": lambda x: math.log(2) * torch.exp2(x),
    "expm1": torch.exp,
    "log": torch.reciprocal,
    "log2": lambda x: torch.reciprocal(x) / math.log(2),
    "log1p": lambda x: torch.reciprocal(1 + x),
    "sin": torch.cos,
    "cos": lambda x: -torch.sin(x),
    "tan": lambda x: 1 + torch.square(torch.tan(x)),
    "asin": lambda x: torch.rsqrt(1 - x * x),
    "acos": lambda x: -torch.rsqrt(1 - x * x),
    "atan": lambda x: torch.reciprocal(1 + x * x),
    "asinh": lambda x: torch.rsqrt(1 + x * x),
    "acosh": lambda x: torch.rsqrt(x - 1) * torch.rsqrt(x + 1),
    "atanh": lambda x: torch.reciprocal(1 - x * x),
    "erf": lambda x: (2 / math.sqrt(math.pi)) * torch.exp(-x * x),
    "erfc": lambda x: (-2 / math.sqrt(math.pi)) * torch.exp(-x * x),
    "normal_cdf": lambda x: math.sqrt(0.5 / math.pi) * torch.exp(-0.5 * x * x),
    "softplus": torch.sigmoid,
    "quick_gelu": _quick_gelu,
}
_STEPS = ("sign", "floor", "ceil", "round", "trunc", "logical_not", "isnan", "isinf", "isfinite")
_SLOPES |= dict.fromkeys(_STEPS, torch.zeros_like)


def times_derivative(activation: str | None, grad: Tensor, kept: Tensor, *, result: bool = False) -> Tensor:
    """The gradient of what the activation read, in grad's dtype.

    Args:
        activation: any of ``catalog.ACTIVATIONS``; None changes nothing.
        grad: that of its result.
        kept: what it read, or with ``result``, for those of :data:`FROM_RESULT`, what it gave; grad's shape.
    """
    if activation is None:
        return grad
    if kept.dtype != grad.dtype:
        return times_derivative(activation, grad.float(), kept.float(), result=result).to(grad.dtype)
    if activation in FROM_RESULT and not result:
        kept = ELEMENTWISE[activation](kept.float())
        return times_derivative(activation, grad, kept, result=True)
    if activation in _KERNELS:
        return _KERNELS[activation](grad, kept)
    return (grad.float() * _SLOPES[activation](kept.float())).to(grad.dtype)
