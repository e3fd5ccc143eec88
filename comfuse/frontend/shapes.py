"""Fake tensors whose sizes are symbols.

Where torch has no rule for symbols in C++, it runs a decomposition of dozens of operators for the shape of a
result.  Those that end most functions have a rule here, which takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

aten = torch.ops.aten


class SymbolicMode(FakeTensorMode):
    """The mode of a trace with symbols.

    Attributes:
        shapes: where the symbols come from; it gets the guards.
    """

    def __init__(self) -> None:
        self.shapes = ShapeEnv(duck_shape=False)
        super().__init__(allow_non_fake_inputs=True, shape_env=self.shapes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        if rule is None or kwargs:
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        return rule(*args)


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    of_rows = (*x.shape[: x.dim() - len(shape)], *(1 for _ in shape))
    dtype = x.dtype if x.device.type == "cpu" else torch.float32
    return x.new_empty(x.shape), *(x.new_empty(of_rows, dtype=dtype) for _ in range(2))


def _nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor]:
    return x.new_empty(() if reduction else target.shape), x.new_empty(())


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return torch.empty_like(x, dtype=torch.float32 if half_to_float else None)


def _gelu(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)


RULES: dict[Any, Callable[..., Any]] = {
    aten.addmm.default: _addmm,
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten._log_softmax.default: _log_softmax,
    aten.native_layer_norm.default: _layer_norm,
    aten.nll_loss_forward.default: _nll_loss,
}
