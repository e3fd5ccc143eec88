"""Derivatives that are not taken by a backward: in forward mode, and by torch.func.

No op has one.  Its kernel would drop tangents without a word, and torch.func does not take the Functions of
:mod:`comfuse.ops.autograd`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from comfuse.errors import GradientError


def in_forward_mode() -> bool:
    """Whether anything can have a derivative in forward mode: the cheap question, which each call asks."""
    return forward_ad._current_level >= 0


def have_tangents(values: Iterable[Any]) -> bool:
    """Whether one of the values may have a derivative in forward mode; for use where that is on."""
    return any(isinstance(value, Tensor) and _has_tangent(value) for value in values)


def _has_tangent(x: Tensor) -> bool:
    # Inside of vmap or another level, only torch.func knows.
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(x)  # type: ignore[attr-defined]
    return wrapped or forward_ad.unpack_dual(x).tangent is not None


def refuse_tangents(op: str, values: Iterable[Any]) -> None:
    """Raises GradientError where one of the values has a derivative in forward mode."""
    if have_tangents(values):
        raise GradientError(
            op,
            "an input has a forward-mode derivative, which the op does not have: use backward() or "
            "torch.autograd.grad, or torch's own ops there",
        )


def refuse_transforms(op: str) -> None:
    """Raises GradientError inside of a transform of torch.func.  For a call that wants a gradient."""
    if torch._C._are_functorch_transforms_active():
        raise GradientError(
            op,
            "its gradient is not available to torch.func's transforms: use backward() or "
            "torch.autograd.grad, or torch's own ops there",
        )
