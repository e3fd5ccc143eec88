"""What the named ops share: the fast path, and the checks that run only after it failed.

A named op looks up the text of its spec by the properties of its arguments, and calls the dispatcher op.
Nothing is checked before: the dispatcher op checks shapes, dtypes and devices against the spec.  When
anything on this path fails, :func:`explain` looks at the arguments again, by the names that the user knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from comfuse import fallbacks
from comfuse.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from comfuse.generator.spec import DType
from comfuse.ops.resolver import translate
from comfuse.reference import SPEC_DTYPES

F = TypeVar("F", bound=Callable[..., Any])

#: Element types of x and weight.
AB_DTYPES: dict[torch.dtype, DType] = {torch.bfloat16: DType.BF16, torch.float16: DType.FP16}


def constant_when_traced(function: F) -> F:
    """Lets torch.compile run ``function`` while it traces, and take its result as a constant.

    What torch.compiler.assume_constant_result does, without importing the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_traced
def _count_no_products(op: str) -> bool:
    fallbacks.record(op, "K is 0: a kernel multiplies eight zeros instead")
    return True


@constant_when_traced
def _count_gradient(op: str) -> bool:
    fallbacks.record(
        op,
        "an input requires a gradient: there are no kernels for it yet; use torch.no_grad() to infer",
    )
    return True


def needs_gradient(*tensors: Tensor | None) -> bool:
    for tensor in tensors:  # noqa: SIM110  (any() over a generator costs half a microsecond more)
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def differentiable(
    op: str, x: Tensor, weight: Tensor, rows: dict[str, Tensor | None], tiles: dict[str, Tensor | None]
) -> None:
    """Checks and counts a call that is about to run torch's own ops for its gradients.

    Under torch.compile it counts once a trace.
    """
    fault = _fault(op, x, weight, rows, tiles)
    if fault is not None:
        raise fault
    _count_gradient(op)


def no_products(op: str, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, int]:
    """``x``, ``weight`` and K where K is 0: eight zeros a row, whose products sum to the same."""
    if x.shape[-1] != 0:
        return x, weight, 0  # a fault, which the checks find
    if x.is_cuda:
        _count_no_products(op)
    return x.new_zeros(*x.shape[:-1], 8), weight.new_zeros(weight.shape[0], 8), 8


def explain(
    op: str,
    error: Exception,
    x: Any,
    weight: Any,
    rows: dict[str, Any],
    tiles: dict[str, Any],
) -> Exception:
    """The error to raise for a call that failed with ``error``: what is wrong with its arguments, if anything
    is.

    Args:
        rows: row vectors by their names, each a tensor (N,) or None.
        tiles: tiles by their names, each a tensor (..., N) or None.
    """
    fault = _fault(op, x, weight, rows, tiles)
    if fault is not None:
        return fault
    return translate(error, op) if isinstance(error, RuntimeError) else error


def _fault(op: str, x: Any, weight: Any, rows: dict[str, Any], tiles: dict[str, Any]) -> ArgumentError | None:
    operands = {name: tensor for name, tensor in {**rows, **tiles}.items() if tensor is not None}
    for name, value in {"x": x, "weight": weight, **operands}.items():
        if not isinstance(value, Tensor):
            return ArgumentError(op, name, f"of type {type(value).__name__}", "a torch.Tensor")
    if x.ndim < 1:
        return ShapeError(op, "x", "a tensor of rank 0", "(..., K)")
    if weight.ndim != 2:
        return ShapeError(op, "weight", f"of shape {tuple(weight.shape)}", "(N, K), as nn.Linear has it")
    n, k = weight.shape
    if x.shape[-1] != k:
        hint = "transpose it" if x.shape[-1] == n else ""
        allowed = f"(N, K) with K = {x.shape[-1]}, the last dimension of x"
        return ShapeError(op, "weight", f"of shape {tuple(weight.shape)}", allowed, hint)
    if x.dtype not in AB_DTYPES:
        return DTypeError(op, "x", str(x.dtype), _names(AB_DTYPES), "convert it with x.to(torch.bfloat16)")
    if weight.dtype != x.dtype:
        return DTypeError(op, "weight", str(weight.dtype), f"x's dtype, {x.dtype}", "convert one of them")
    if weight.device != x.device:
        return _device(op, "weight", weight, x)
    for name, tensor in operands.items():
        if tensor.device != x.device:
            return _device(op, name, tensor, x)
        if tensor.dtype not in SPEC_DTYPES:
            return DTypeError(op, name, str(tensor.dtype), _names(SPEC_DTYPES))
        allowed = (n,) if name in rows else (*x.shape[:-1], n)
        if tuple(tensor.shape) != allowed and not _is_flat(name in tiles, tensor, x, n):
            return ShapeError(op, name, f"of shape {tuple(tensor.shape)}", str(tuple(allowed)))
    return None


def _is_flat(tile: bool, tensor: Tensor, x: Tensor, n: int) -> bool:
    """A tile whose rows are one dimension is taken as well."""
    return tile and x.ndim != 2 and tuple(tensor.shape) == (x.shape[:-1].numel(), n)


def _device(op: str, name: str, tensor: Tensor, x: Tensor) -> DeviceError:
    return DeviceError(op, name, f"on {tensor.device}", f"x's device, {x.device}", "move it there")


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(str(dtype) for dtype in dtypes)
