"""``CfProgram`` of csrc/binding/table.h: what the binding has to know of a spec or a chain."""

from __future__ import annotations

import ctypes

from comfuse.errors import ArgumentError
from comfuse.generator.phases.access import moves_rows
from comfuse.generator.spec import DType, Major, Space
from comfuse.library import abi
from comfuse.ops import checks
from comfuse.ops.programs import Program

_SPACES = {Space.SCALAR: 0, Space.ROW: 1, Space.COLUMN: 2, Space.GROUP: 3, Space.TILE: 4}
_DTYPES = {dtype: number for number, dtype in enumerate(DType)}
_MAJORS = {Major.K: 0, Major.MN: 1}


class Slot(ctypes.Structure):
    """``CfSlot``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("allowed", ctypes.c_char_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("place", ctypes.c_int32),
        ("space", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("strided", ctypes.c_int32),
        ("whole_rows", ctypes.c_int32),
        ("major", ctypes.c_int32),
    )


class Facts(ctypes.Structure):
    """``CfProgram``."""

    _fields_ = (
        ("group", ctypes.c_int64),
        ("factor_count", ctypes.c_int32),
        ("batched", ctypes.c_int32),
        ("operand_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("scalar_count", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("a", Slot),
        ("b", Slot * abi.MAX_FACTORS),
        ("operands", Slot * abi.MAX_OPERANDS),
        ("outputs", Slot * abi.MAX_OUTPUTS),
    )


def facts(program: Program) -> Facts:
    """What the binding has to know of a program.

    Raises:
        ArgumentError: more factors, operands, outputs or scalars than a kernel can take.
    """
    first, last = program.links[0], program.links[-1]
    for what, count, most in (
        ("factors", len(program.factors), abi.MAX_FACTORS),
        ("operands", len(program.tensors), abi.MAX_OPERANDS),
        ("outputs", len(program.outputs), abi.MAX_OUTPUTS),
        ("scalars", program.scalar_count, abi.MAX_SCALARS),
    ):
        if count > most:
            raise ArgumentError("region", what, f"a list of {count}", f"at most {most}")
    result = Facts(
        group=program.group or 0,
        factor_count=len(program.factors),
        batched=program.batched,
        operand_count=len(program.tensors),
        output_count=len(program.outputs),
        scalar_count=program.scalar_count,
        a=_slot(
            "a",
            checks.allowed_a(program),
            Space.TILE,
            program.dtype,
            k=program.k,
            major=_MAJORS[first.a_major],
        ),
    )
    for i, factor in enumerate(program.factors):
        result.b[i] = _slot(
            factor.name,
            checks.allowed_factor(program, factor),
            Space.TILE,
            program.dtype,
            n=factor.n or 0,
            k=factor.k,
            place=factor.place,
            major=_MAJORS[factor.major],
        )
    for i, tensor in enumerate(program.tensors):
        operand = tensor.operand
        result.operands[i] = _slot(
            operand.name,
            checks.allowed_operand(program, tensor),
            operand.space,
            operand.dtype,
            n=tensor.n,
            place=tensor.place,
            strided=operand.strided,
            whole_rows=moves_rows(tensor.link, operand),
        )
    for i, (output, space) in enumerate(zip(program.outputs, program.output_spaces, strict=True)):
        result.outputs[i] = _slot(
            output.name,
            "",
            space,
            output.dtype,
            n=program.n,
            heads=output.heads or 0,
            strided=output.strided,
            whole_rows=moves_rows(last, output),
        )
    return result


def _slot(name: str, allowed: str, space: Space, dtype: DType, **numbers: int) -> Slot:
    kind = {"space": _SPACES[space], "dtype": _DTYPES[dtype]}
    return Slot(name=name.encode(), allowed=allowed.encode(), **kind, **numbers)
