"""What is wrong with the arguments of a named op, by the names that the user knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from comfuse.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from comfuse.generator.spec import DType, Space
from comfuse.reference import SPEC_DTYPES

#: Element types of x and weight.
AB_DTYPES: dict[torch.dtype, DType] = {torch.bfloat16: DType.BF16, torch.float16: DType.FP16}
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
#: What autocast knows of the devices that x may be on; meta it does not.
AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Argument:
    """A tensor that a named op takes besides x and its weight.

    ROW: (N,).  COLUMN: the leading sizes of x.  TILE: (..., N), or what broadcasts to it.  The latter two may
    also come with the leading sizes flattened to M.  None: another weight, of the first one's shape; or, if
    it ``begins_layer``, that of the next layer, (N, H) behind one of H columns; what follows belongs to it.
    """

    name: str
    space: Space | None
    dtypes: tuple[torch.dtype, ...] = FLOATS
    required: bool = False
    begins_layer: bool = False

    def spec_dtype(self, dtype: torch.dtype) -> DType:
        """Raises LookupError where the argument may not have this dtype."""
        if dtype not in self.dtypes:
            raise LookupError(dtype)
        return SPEC_DTYPES[dtype]


def autocast_dtype(factors: Sequence[Tensor]) -> torch.dtype | None:
    """What autocast converts x and its weights to; None where they stay as they are: without autocast, where
    they have one dtype that kernels take, and where one has a dtype that autocast leaves alone.
    """
    device = factors[0].device.type
    if device not in AUTOCAST_DEVICES or not torch.is_autocast_enabled(device):
        return None
    first = factors[0].dtype
    if first in AB_DTYPES and all(factor.dtype == first for factor in factors):
        return None
    if not all(factor.dtype in FLOATS for factor in factors):
        return None
    return torch.get_autocast_dtype(device)


def of_layout(op: str, name: str, value: Any) -> ArgumentError | None:
    """What is wrong with a tensor that has no strides."""
    if not isinstance(value, Tensor) or (value.layout is torch.strided and not value.is_nested):
        return None
    got = "a nested tensor" if value.is_nested else f"a tensor of layout {value.layout}"
    return ArgumentError(op, name, got, "strided tensors", "convert it, with to_dense or to_padded_tensor")


def check_layout(name: str, value: Any) -> None:
    """Raises that, of an argument of comfuse::region."""
    fault = of_layout("region", name, value)
    if fault is not None:
        raise fault


def of_options(op: str, given: dict[str, Any], allowed: dict[str, tuple[Any, ...]]) -> ArgumentError | None:
    for name, value in given.items():
        if value not in allowed[name]:
            return ArgumentError(op, name, repr(value), ", ".join(_word(choice) for choice in allowed[name]))
    return None


def of_scalars(op: str, given: dict[str, Any]) -> ArgumentError | None:
    for name, value in given.items():
        one = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
        if not one and not isinstance(value, Real | torch.SymInt | torch.SymFloat):
            return ArgumentError(op, name, f"of type {type(value).__name__}", "a number")
    return None


def of_tensors(
    op: str, x: Any, weight: tuple[str, Any], arguments: Sequence[tuple[Argument, Any]]
) -> ArgumentError | None:
    """``weight``: its name and value; ``arguments``: the others with theirs, None for what was left out."""
    layers = [i for i, (argument, _) in enumerate(arguments) if argument.begins_layer]
    if not layers:
        return _of_layer(op, x, weight, arguments)
    own, (following, w1), rest = arguments[: layers[0]], arguments[layers[0]], arguments[layers[0] + 1 :]
    fault = _of_layer(op, x, weight, own) or _of_next(op, weight, following.name, w1)
    if fault is not None:
        return fault
    # What the next layer reads, without memory.
    middle = x.new_empty(()).expand(*x.shape[:-1], weight[1].shape[0])
    return of_tensors(op, middle, (following.name, w1), rest)


def _of_next(op: str, weight: tuple[str, Tensor], name: str, w1: Any) -> ArgumentError | None:
    """What is wrong with the weight of the layer behind that of ``weight``."""
    if not isinstance(w1, Tensor):
        return ArgumentError(op, name, f"of type {type(w1).__name__}", "a torch.Tensor")
    h = weight[1].shape[0]
    fault = of_layout(op, name, w1)
    if fault is not None:
        return fault
    if w1.ndim == 2 and w1.shape[1] == h:
        return None
    hint = "transpose it" if w1.ndim == 2 and w1.shape[0] == h else ""
    allowed = f"(N, H) with H = {h}, the rows of {weight[0]}"
    return ShapeError(op, name, f"of shape {tuple(w1.shape)}", allowed, hint)


def _of_layer(
    op: str, x: Any, weight: tuple[str, Any], arguments: Sequence[tuple[Argument, Any]]
) -> ArgumentError | None:
    given = [(argument, value) for argument, value in arguments if argument.required or value is not None]
    for name, value in [("x", x), weight, *((argument.name, value) for argument, value in given)]:
        if not isinstance(value, Tensor):
            return ArgumentError(op, name, f"of type {type(value).__name__}", "a torch.Tensor")
        fault = of_layout(op, name, value)
        if fault is not None:
            return fault
    weights = dict([weight, *((argument.name, value) for argument, value in given if argument.space is None)])
    operands = [(argument, value) for argument, value in given if argument.space is not None]
    return _of_factors(op, x, weights) or _of_operands(op, x, weight[1].shape[0], operands)


def _of_factors(op: str, x: Tensor, weights: dict[str, Tensor]) -> ArgumentError | None:
    if x.ndim < 1:
        return ShapeError(op, "x", "a tensor of rank 0", "(..., K)")
    first, shape = next((name, tuple(weight.shape)) for name, weight in weights.items())
    for name, weight in weights.items():
        got = f"of shape {tuple(weight.shape)}"
        if weight.ndim != 2:
            return ShapeError(op, name, got, "(N, K), as nn.Linear has it")
        n, k = weight.shape
        if x.shape[-1] != k:
            hint = "transpose it" if x.shape[-1] == n else ""
            return ShapeError(op, name, got, f"(N, K) with K = {x.shape[-1]}, the last dimension of x", hint)
        if tuple(weight.shape) != shape:
            return ShapeError(op, name, got, f"{first}'s shape, {shape}")
        if n == 0:
            return ShapeError(op, name, got, "(N, K) with N at least 1")
    converted = autocast_dtype([x, *weights.values()]) is not None
    if x.dtype not in AB_DTYPES and not converted:
        return DTypeError(op, "x", str(x.dtype), _names(AB_DTYPES), "convert it with x.to(torch.bfloat16)")
    for name, weight in weights.items():
        if weight.dtype != x.dtype and not converted:
            return DTypeError(op, name, str(weight.dtype), f"x's dtype, {x.dtype}", "convert one of them")
        if weight.device != x.device:
            return _device(op, name, weight, x)
    return None


def _of_operands(
    op: str, x: Tensor, n: int, given: Sequence[tuple[Argument, Tensor]]
) -> ArgumentError | None:
    lead = tuple(x.shape[:-1])
    for argument, tensor in given:
        name, shape = argument.name, tuple(tensor.shape)
        if tensor.device != x.device:
            return _device(op, name, tensor, x)
        if tensor.dtype not in argument.dtypes:
            return DTypeError(op, name, str(tensor.dtype), _names(argument.dtypes))
        rows = x.shape[:-1].numel()
        whole, flat = {
            Space.ROW: ((n,), (n,)),
            Space.COLUMN: (lead, (rows,)),
            Space.TILE: ((*lead, n), (rows, n)),
        }[argument.space]
        is_tile = argument.space is Space.TILE
        if shape not in (whole, flat) and not (is_tile and _broadcasts(shape, whole)):
            allowed = f"{whole}, or what broadcasts to it" if is_tile else str(whole)
            return ShapeError(op, name, f"of shape {shape}", allowed)
    return None


def _broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return len(shape) <= len(whole) and all(
        size in (1, of_whole) for size, of_whole in zip(reversed(shape), reversed(whole), strict=False)
    )


def _device(op: str, name: str, tensor: Tensor, x: Tensor) -> DeviceError:
    return DeviceError(op, name, f"on {tensor.device}", f"x's device, {x.device}", "move it there")


def _word(choice: Any) -> str:
    return str(choice) if isinstance(choice, torch.dtype) else repr(choice)


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(str(dtype) for dtype in dtypes)
