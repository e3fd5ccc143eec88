"""One torch function for each elementwise row of comfuse.generator.ops."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
aten = torch.ops.aten


def _test(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that answers 1 or 0 in the dtype of its input."""
    return lambda *inputs: function(*inputs).to(inputs[0].dtype)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))  # F.softplus is linear beyond its threshold


def _sign(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)  # torch.sign(nan) is nan on some devices


def _elu(x: Tensor, alpha: Tensor) -> Tensor:
    return torch.where(x > 0, x, alpha * torch.expm1(x))


def _mish(x: Tensor) -> Tensor:
    return x * torch.tanh(_softplus(x))


def _mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate = torch.tanh(_softplus(x))
    return grad * (gate + x * torch.sigmoid(x) * (1 - gate * gate))


def _gelu_backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    grad, x = torch.broadcast_tensors(grad, x)  # oneDNN's does not broadcast
    return aten.gelu_backward(grad, x, approximate=approximate)


def _gelu_backward_of_cdf(grad: Tensor, x: Tensor, cdf: Tensor) -> Tensor:
    return grad * (cdf + x * torch.exp(-0.5 * x * x) * math.sqrt(0.5 / math.pi))


def _gelu_tanh_backward_of_double(grad: Tensor, h: Tensor) -> Tensor:
    """By a sigmoid: aten's 1 + tanh cancels for negative h."""
    x, scale = 2 * h, math.sqrt(8 / math.pi)
    gate = torch.sigmoid(scale * x * (1 + 0.044715 * x * x))
    return grad * (gate + x * gate * (1 - gate) * scale * (1 + 3 * 0.044715 * x * x))


def _hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    # aten's own answers differently to NaN on CPUs and GPUs; this is what GPUs do.
    inner = torch.where(x < 3, grad * (x / 3 + 0.5), grad)
    return torch.where(x <= -3, torch.zeros_like(inner), inner)


ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": _sign,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "fmin": torch.fmin,
    "fmax": torch.fmax,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "square": torch.square,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "hypot": torch.hypot,
    "pow": torch.pow,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sigmoid": torch.sigmoid,
    "normal_cdf": torch.special.ndtr,
    "softplus": _softplus,
    "relu": torch.relu,
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, x * slope),
    "elu": _elu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "mish": _mish,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "fast_tanh": torch.tanh,
    "sigmoid_of_double": lambda h: torch.sigmoid(2 * h),
    "silu_of_double": lambda h: F.silu(2 * h),
    "quick_gelu_of_double": lambda h: 2 * h * torch.sigmoid(3.404 * h),
    "half_gelu_of_quadruple": lambda a: F.gelu(4 * a) / 2,
    "gelu_tanh_of_double": lambda h: F.gelu(2 * h, approximate="tanh"),
    "gelu_backward_of_double": lambda grad, h: _gelu_backward(grad, 2 * h, "none"),
    "gelu_tanh_backward_of_double": _gelu_tanh_backward_of_double,
    "silu_backward_of_double": lambda grad, h: aten.silu_backward(grad, 2 * h),
    "gelu_backward_of_cdf": _gelu_backward_of_cdf,
    "gelu_backward": lambda grad, x: _gelu_backward(grad, x, "none"),
    "gelu_tanh_backward": lambda grad, x: _gelu_backward(grad, x, "tanh"),
    "silu_backward": aten.silu_backward,
    "mish_backward": _mish_backward,
    "hardswish_backward": _hardswish_backward,
    "softplus_backward": lambda grad, x: grad * torch.sigmoid(x),
    "sigmoid_backward": aten.sigmoid_backward,
    "tanh_backward": aten.tanh_backward,
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
    "eq": _test(torch.eq),
    "ne": _test(torch.ne),
    "lt": _test(torch.lt),
    "le": _test(torch.le),
    "gt": _test(torch.gt),
    "ge": _test(torch.ge),
    "logical_and": _test(torch.logical_and),
    "logical_or": _test(torch.logical_or),
    "logical_xor": _test(torch.logical_xor),
    "logical_not": _test(torch.logical_not),
    "isnan": _test(torch.isnan),
    "isinf": _test(torch.isinf),
    "isfinite": _test(torch.isfinite),
}
