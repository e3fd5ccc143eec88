"""What the ops know of a spec's text: parsed once, checked against the arguments of a call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from comfuse.errors import ArgumentError, DeviceError, DTypeError, ShapeError, SpecError
from comfuse.generator.passes import normalize
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Operand, Space
from comfuse.library import abi
from comfuse.reference import TORCH_DTYPES

_OP = "region"


@dataclass(frozen=True)
class Program:
    """A spec, taken apart in the way of a call's arguments."""

    spec: FusedSpec
    tensors: tuple[Operand, ...]  # the non-scalar operands
    scalar_count: int
    output_spaces: tuple[Space, ...]

    @property
    def is_single(self) -> bool:
        return len(self.spec.outputs) == 1

    def check(self, a: Tensor, b: Tensor, operands: Sequence[Tensor], scalars: Sequence[float]) -> None:
        """The rules of csrc/binding/tensors.cpp, for tensors that do not get there.

        Raises:
            ShapeError, DTypeError, DeviceError, ArgumentError: naming the argument.
        """
        spec = self.spec
        dtype = TORCH_DTYPES[spec.dtype]
        if a.ndim < 1 or a.shape[-1] != spec.k:
            raise _shape("a", a, f"(..., K) with K = {spec.k}")
        if tuple(b.shape) != (spec.n, spec.k):
            raise _shape("b", b, f"({spec.n}, {spec.k})")
        _check_kind("a", a, a, dtype)
        _check_kind("b", a, b, dtype)
        if len(operands) != len(self.tensors):
            raise ArgumentError(_OP, "operands", f"a list of {len(operands)}", str(len(self.tensors)))
        if len(scalars) < self.scalar_count:
            raise ArgumentError(_OP, "scalars", f"a list of {len(scalars)}", str(self.scalar_count))
        for operand, tensor in zip(self.tensors, operands, strict=True):
            _check_kind(operand.name, a, tensor, TORCH_DTYPES[operand.dtype])
            _check_space(operand, a, tensor, spec.n)


def _check_kind(name: str, a: Tensor, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype is not dtype:
        raise DTypeError(_OP, name, str(tensor.dtype), str(dtype))
    if tensor.device != a.device:
        raise DeviceError(_OP, name, f"on {tensor.device}", f"a's device, {a.device}")


def _check_space(operand: Operand, a: Tensor, tensor: Tensor, n: int) -> None:
    lead, shape = tuple(a.shape[:-1]), tuple(tensor.shape)
    if operand.space is Space.ROW:
        ok = len(shape) >= 1 and shape[-1] == n and all(size == 1 for size in shape[:-1])
        allowed = f"({n},)"
    elif operand.space is Space.TILE:
        ok = shape == (*lead, n) or (len(shape) != len(lead) + 1 and _flat(shape, lead, n))
        allowed = f"{(*lead, n)} or the same with flattened rows"
    else:
        ok = shape in ((*lead, 1), lead) or (
            len(shape) not in (len(lead), len(lead) + 1) and _flat(shape, lead, 1)
        )
        allowed = f"{(*lead, 1)}, {lead}, or the same with flattened rows"
    if not ok:
        raise _shape(operand.name, tensor, allowed)


def _flat(shape: tuple[int, ...], lead: tuple[int, ...], last: int) -> bool:
    numel = torch.Size(shape).numel()
    return numel == torch.Size(lead).numel() * last and (last == 1 or shape[-1:] == (last,))


def _shape(name: str, tensor: Tensor, allowed: str) -> ShapeError:
    return ShapeError(_OP, name, f"of shape {tuple(tensor.shape)}", allowed)


@lru_cache(maxsize=1024)
def parse(text: str) -> Program:
    """The program behind a spec's canonical text.

    Raises:
        SpecError: the text is not that of a spec, or the spec is malformed.
    """
    try:
        spec = FusedSpec.parse(text)
    except ValueError as e:
        raise SpecError("spec", str(e)) from None
    normalize(spec)  # verifies
    tensors = tuple(operand for operand in spec.operands if operand.space is not Space.SCALAR)
    return Program(
        spec=spec,
        tensors=tensors,
        scalar_count=len(spec.operands) - len(tensors),
        output_spaces=tuple(spaces(spec)[output.node] for output in spec.outputs),
    )


# --- the same for the binding: csrc/binding/table.h ---

_SPACES = {Space.ROW: 1, Space.COLUMN: 2, Space.TILE: 3}
_DTYPES = {DType.BF16: 0, DType.FP16: 1, DType.FP32: 2}


class _Slot(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("space", ctypes.c_int32), ("dtype", ctypes.c_int32))


class Facts(ctypes.Structure):
    """``CfProgram``."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("operand_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("scalar_count", ctypes.c_int32),
        ("operands", _Slot * abi.MAX_OPERANDS),
        ("outputs", _Slot * abi.MAX_OUTPUTS),
    )


def facts(program: Program) -> Facts:
    """What the binding has to know of a program.

    Raises:
        ArgumentError: more operands, outputs or scalars than a kernel can take.
    """
    spec = program.spec
    for what, count, most in (
        ("operands", len(program.tensors), abi.MAX_OPERANDS),
        ("outputs", len(spec.outputs), abi.MAX_OUTPUTS),
        ("scalars", program.scalar_count, abi.MAX_SCALARS),
    ):
        if count > most:
            raise ArgumentError(_OP, what, f"a list of {count}", f"at most {most}")
    result = Facts(
        spec.n, spec.k, _DTYPES[spec.dtype], len(program.tensors), len(spec.outputs), program.scalar_count
    )
    for i, operand in enumerate(program.tensors):
        result.operands[i] = _Slot(operand.name.encode(), _SPACES[operand.space], _DTYPES[operand.dtype])
    for i, (output, space) in enumerate(zip(spec.outputs, program.output_spaces, strict=True)):
        result.outputs[i] = _Slot(output.name.encode(), _SPACES[space], _DTYPES[output.dtype])
    return result
