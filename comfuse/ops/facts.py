"""``CfProgram`` of csrc/binding/table.h: what the binding has to know of a spec."""

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
        ("space", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("heads", ctypes.c_int64),
        ("strided", ctypes.c_int32),
        ("whole_rows", ctypes.c_int32),
    )


class Facts(ctypes.Structure):
    """``CfProgram``."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("products", ctypes.c_int32),
        ("a_major", ctypes.c_int32),
        ("b_major", ctypes.c_int32),
        ("batched", ctypes.c_int32),
        ("operand_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("scalar_count", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("a", Slot),
        ("b", Slot * abi.MAX_PRODUCTS),
        ("operands", Slot * abi.MAX_OPERANDS),
        ("outputs", Slot * abi.MAX_OUTPUTS),
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
            raise ArgumentError("region", what, f"a list of {count}", f"at most {most}")
    result = Facts(
        n=spec.n,
        k=spec.k,
        group=spec.group or 0,
        products=spec.products,
        a_major=_MAJORS[spec.a_major],
        b_major=_MAJORS[spec.b_major],
        batched=spec.batched,
        operand_count=len(program.tensors),
        output_count=len(spec.outputs),
        scalar_count=program.scalar_count,
        a=_slot("a", checks.allowed_a(program), Space.TILE, spec.dtype),
    )
    for i, name in enumerate(program.factor_names):
        result.b[i] = _slot(name, checks.allowed_b(program), Space.TILE, spec.dtype)
    for i, operand in enumerate(program.tensors):
        result.operands[i] = _slot(
            operand.name,
            checks.allowed_operand(program, operand),
            operand.space,
            operand.dtype,
            strided=operand.strided,
            whole_rows=moves_rows(spec, operand),
        )
    for i, (output, space) in enumerate(zip(spec.outputs, program.output_spaces, strict=True)):
        result.outputs[i] = _slot(
            output.name,
            "",
            space,
            output.dtype,
            heads=output.heads or 0,
            strided=output.strided,
            whole_rows=moves_rows(spec, output),
        )
    return result


def _slot(
    name: str,
    allowed: str,
    space: Space,
    dtype: DType,
    *,
    heads: int = 0,
    strided: bool = False,
    whole_rows: bool = True,
) -> Slot:
    return Slot(name.encode(), allowed.encode(), _SPACES[space], _DTYPES[dtype], heads, strided, whole_rows)
