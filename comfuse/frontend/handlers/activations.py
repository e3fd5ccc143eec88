"""Activations and their derivatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from comfuse.frontend.handlers.elementwise import Handler, same
from comfuse.frontend.placing import Frame, Value
from comfuse.frontend.views import arguments, refuse

if TYPE_CHECKING:
    from comfuse.frontend.lowering import Lowering

aten = torch.ops.aten


def _gelu(op: str) -> Handler:
    def handler(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
        given = arguments(node)
        tanh = given.pop("approximate") == "tanh"
        inputs = (low.value(x, frame, node) for x in given.values())
        return low.emit(op.replace("gelu", "gelu_tanh") if tanh else op, *inputs)

    return handler


def _elu(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    """``scale * (x if x > 0 else alpha * expm1(x * input_scale))``."""
    given = arguments(node)
    x = low.value(given["self"], frame, node)
    alpha = low.value(given["alpha"], frame, node)
    if given["input_scale"] == 1:
        y = low.emit("elu", x, alpha)
    else:
        scaled = low.emit("mul", x, low.value(given["input_scale"], frame, node))
        below = low.emit("mul", alpha, low.emit("expm1", scaled))
        y = low.emit("where", low.emit("gt", x, low.const(0.0)), x, below)
    return y if given["scale"] == 1 else low.emit("mul", y, low.value(given["scale"], frame, node))


def _check_threshold(node: torch.fx.Node, given: dict[str, Any]) -> None:
    # From 20 on, softplus(x) and x are the same float32, so that torch's switch changes nothing.
    if given["threshold"] < 20 or given["beta"] == 0:
        raise refuse(
            node,
            f"threshold {given['threshold']}, beta {given['beta']}; allowed: threshold >= 20, beta != 0",
        )


def _softplus(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    _check_threshold(node, given)
    x = low.value(given["self"], frame, node)
    if given["beta"] == 1:
        return low.emit("softplus", x)
    beta = low.value(given["beta"], frame, node)
    return low.emit("div", low.emit("softplus", low.emit("mul", x, beta)), beta)


def _softplus_backward(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    _check_threshold(node, given)
    grad, x = (low.value(given[name], frame, node) for name in ("grad_output", "self"))
    if given["beta"] != 1:
        x = low.emit("mul", x, low.value(given["beta"], frame, node))
    return low.emit("softplus_backward", grad, x)


def _threshold_backward(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    """The gradient where ``x > threshold``.  A NaN x passes it on, as torch has it."""
    given = arguments(node)
    grad, x = (low.value(given[name], frame, node) for name in ("grad_output", "self"))
    below = low.emit("le", x, low.value(given["threshold"], frame, node))
    return low.emit("where", below, low.const(0.0), grad)


def _leaky_relu_backward(low: Lowering, node: torch.fx.Node, frame: Frame) -> Value:
    given = arguments(node)
    grad, x = (low.value(given[name], frame, node) for name in ("grad_output", "self"))
    scaled = low.emit("mul", grad, low.value(given["negative_slope"], frame, node))
    return low.emit("where", low.emit("gt", x, low.const(0.0)), grad, scaled)


ELEMENTWISE: dict[Any, Handler] = {
    aten.elu.default: _elu,
    aten.gelu.default: _gelu("gelu"),
    aten.gelu_backward.default: _gelu("gelu_backward"),
    aten.hardsigmoid.default: same("hardsigmoid"),
    aten.hardswish.default: same("hardswish"),
    aten.hardswish_backward.default: same("hardswish_backward"),
    aten.leaky_relu.default: same("leaky_relu"),
    aten.leaky_relu_backward.default: _leaky_relu_backward,
    aten.mish.default: same("mish"),
    aten.mish_backward.default: same("mish_backward"),
    aten._prelu_kernel.default: same("leaky_relu"),
    aten.relu.default: same("relu"),
    aten.sigmoid.default: same("sigmoid"),
    aten.sigmoid_backward.default: same("sigmoid_backward"),
    aten.silu.default: same("silu"),
    aten.silu_backward.default: same("silu_backward"),
    aten.softplus.default: _softplus,
    aten.softplus_backward.default: _softplus_backward,
    aten.tanh_backward.default: same("tanh_backward"),
    aten.threshold_backward.default: _threshold_backward,
}
