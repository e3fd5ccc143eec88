"""Float64 meaning of the activations and of their backward formulas.

At infinities each is what its formula gives in torch: ``silu(-inf)`` is ``-inf * 0``, NaN.
"""

from __future__ import annotations

import math

from comfuse.generator.ops.ieee import exp, expm1, maximum, minimum


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + exp(-x))


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def softplus(x: float) -> float:
    return maximum(x, 0.0) + math.log1p(exp(-abs(x)))


def relu(x: float) -> float:
    return maximum(x, 0.0)


def leaky_relu(x: float, slope: float) -> float:
    return x if x > 0.0 else x * slope


def elu(x: float, alpha: float) -> float:
    return x if x > 0.0 else alpha * expm1(x)


def gelu(x: float) -> float:
    return x * normal_cdf(x)


def gelu_tanh(x: float) -> float:
    # x * 0.5 * (1 + tanh(u)) = x * sigmoid(2 u), which does not cancel for negative u.
    return x * sigmoid(_twice_u(x))


def silu(x: float) -> float:
    return x * sigmoid(x)


def quick_gelu(x: float) -> float:
    return x * sigmoid(1.702 * x)


def mish(x: float) -> float:
    return x * math.tanh(softplus(x))


def hardsigmoid(x: float) -> float:
    return minimum(maximum(x + 3.0, 0.0), 6.0) / 6.0


def hardswish(x: float) -> float:
    return x * hardsigmoid(x)


# --- the derivative of each, times the gradient ---


def gelu_backward(grad: float, x: float) -> float:
    return gelu_backward_of_cdf(grad, x, normal_cdf(x))


def gelu_backward_of_cdf(grad: float, x: float, cdf: float) -> float:
    density = exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return grad * (cdf + x * density)


def gelu_tanh_backward(grad: float, x: float) -> float:
    gate = sigmoid(_twice_u(x))
    slope = 2.0 * _GELU_TANH * (1.0 + 3.0 * 0.044715 * x * x)  # of 2 u
    return grad * (gate + x * gate * (1.0 - gate) * slope)


def silu_backward(grad: float, x: float) -> float:
    gate = sigmoid(x)
    return grad * gate * (1.0 + x * (1.0 - gate))


def mish_backward(grad: float, x: float) -> float:
    gate = math.tanh(softplus(x))
    return grad * (gate + x * sigmoid(x) * (1.0 - gate * gate))


def hardswish_backward(grad: float, x: float) -> float:
    if x <= -3.0:
        return 0.0
    return grad * (x / 3.0 + 0.5) if x < 3.0 else grad


def softplus_backward(grad: float, x: float) -> float:
    return grad * sigmoid(x)


def sigmoid_backward(grad: float, out: float) -> float:
    return grad * out * (1.0 - out)


def tanh_backward(grad: float, out: float) -> float:
    return grad * (1.0 - out * out)


_GELU_TANH = math.sqrt(2.0 / math.pi)


def _twice_u(x: float) -> float:
    return 2.0 * _GELU_TANH * x * (1.0 + 0.044715 * x * x)
