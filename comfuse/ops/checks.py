"""The rules for a call's tensors, for those that do not get to the C++ binding.

csrc/binding/checks.cpp has the same rules in the same order, and says what is allowed in the words of this
file, which it is given with each program.

While torch.compile traces a call, sizes may be symbols.  Those pass wherever some numbers for them would: a
rule adds no guard, and the call itself is checked again with the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from comfuse.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from comfuse.generator.phases.access import moves_rows
from comfuse.generator.spec import Output, Space
from comfuse.ops import memory
from comfuse.ops.programs import Factor, Input, Program, Sizes
from comfuse.reference import TORCH_DTYPES

_OP = "region"


def check(
    program: Program, a: Tensor, b: Tensor, operands: Sequence[Tensor], scalars: Sequence[float]
) -> None:
    """Raises ShapeError, DTypeError, DeviceError or ArgumentError, naming the argument."""
    check_count("operands", len(operands), len(program.tensors) + len(program.factors) - 1)
    if len(scalars) < program.scalar_count:
        check_count("scalars", len(scalars), program.scalar_count)
    factors, rest = program.split(b, operands)
    dtype = TORCH_DTYPES[program.dtype]
    if not _is_a(program, a):
        raise _shape("a", a, allowed_a(program))
    _check_kind("a", a, a, dtype)
    for factor, tensor in zip(program.factors, factors, strict=True):
        beside = a if program.batched or factor.n is None else None
        if not _is_factor(program, factor, a, tensor.shape):
            raise _shape(factor.name, tensor, allowed_factor(program, factor), beside)
        _check_kind(factor.name, a, tensor, dtype)
    for input, tensor in zip(program.tensors, rest, strict=True):
        _check_kind(input.name, a, tensor, TORCH_DTYPES[input.operand.dtype])
        if not _fits(program, input, tuple(a.shape[:-1]), tuple(tensor.shape)):
            raise _shape(input.name, tensor, allowed_operand(program, input), a)


def check_outputs(program: Program, a: Tensor, out: Sequence[Tensor]) -> None:
    """The same for tensors that the caller gives for the outputs; the other arguments have been checked."""
    check_count("out", len(out), len(program.outputs))
    shapes = program.output_shapes(a.shape[:-1])
    for i, (tensor, shape, dtype) in enumerate(zip(out, shapes, program.output_dtypes, strict=True)):
        if not _are_equal(tensor.shape, shape):
            raise _shape(f"out[{i}]", tensor, str(shape))
        _check_kind(f"out[{i}]", a, tensor, dtype)


def check_places(
    program: Program, a: Tensor, b: Tensor, operands: Sequence[Tensor], out: Sequence[Tensor]
) -> None:
    """That outputs have memory of their own, in strides that a kernel can write.  For tensors with memory.

    Raises:
        ArgumentError: naming the output.
    """
    factors, rest = program.split(b, operands)
    others = [("a", a)]
    others += [(known.name, t) for known, t in zip(program.factors, factors, strict=True)]
    others += [(known.name, t) for known, t in zip(program.tensors, rest, strict=True)]
    for i, tensor in enumerate(out):
        name = f"out[{i}]"
        if memory.may_overlap_itself(tensor):
            raise _strides(name, tensor, "strides that give each element a place of its own")
        for other_name, other in others:
            if memory.may_overlap(tensor, other):
                raise ArgumentError(_OP, name, f"in memory that {other_name} is in too", "memory of its own")
        others.append((name, tensor))
    for i, (output, space) in enumerate(zip(program.outputs, program.output_spaces, strict=True)):
        _check_strides(program, f"out[{i}]", output, space, out[i])


def _is_a(program: Program, a: Tensor) -> bool:
    if program.batched:
        ranked = a.ndim == 3
    else:
        ranked = a.ndim >= (2 if program.splits_heads else 1)
    return ranked and _is_equal(a.shape[-1], program.k)


def _is_factor(program: Program, factor: Factor, a: Tensor, shape: Sizes) -> bool:
    if factor.n is None:
        return _are_equal(shape, (*a.shape[:-1], factor.k))
    matrix = (factor.n, factor.k)
    if program.batched and _has_two_of_batches(a.shape[0], shape):
        return _are_equal(shape[2:], matrix)
    return _is_any(shape, [matrix, (a.shape[0], *matrix)] if program.batched else [matrix])


def _has_two_of_batches(batches: int, shape: Sizes) -> bool:
    """Whether a shape begins with two dimensions that walk the batches, either of which may be 1 for all that
    there are of it.
    """
    if len(shape) != 4:
        return False
    outer, inner = shape[:2]
    if _is_equal(outer * inner, batches):
        return True
    given = outer if _is_equal(inner, 1) else inner
    return (_is_equal(inner, 1) or _is_equal(outer, 1)) and given != 0 and _is_equal(batches % given, 0)


def _fits(program: Program, input: Input, lead: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    n, operand = input.n, input.operand
    if program.batched and _has_two_of_batches(lead[0], shape):
        m = lead[1]
        if operand.space is Space.TILE and operand.strided:
            return _broadcasts(shape[2:], (m, n))
        sizes = {Space.ROW: (1, n), Space.COLUMN: (m, 1), Space.TILE: (m, n)}
        return _are_equal(shape[2:], sizes[operand.space])
    if operand.space is Space.TILE and operand.strided and _broadcasts(shape, (*lead, n)):
        return True
    if program.batched:
        batch, m = lead
        shapes = {
            Space.ROW: [(n,), (1, n), (batch, n), (1, 1, n), (batch, 1, n)],
            Space.COLUMN: [(m,), (m, 1), (1, m), (batch, m), (1, m, 1), (batch, m, 1)],
            Space.TILE: [(m, n), (1, m, n), (batch, m, n)],
        }
        return _is_any(shape, shapes[operand.space])
    if operand.space is Space.ROW:
        return _are_equal(shape[-1:], (n,)) and all(_is_equal(size, 1) for size in shape[:-1])
    if operand.space is Space.TILE:
        return _are_equal(shape, (*lead, n)) or (
            len(shape) != len(lead) + 1
            and _are_equal(shape[-1:], (n,))
            and _is_equal(math.prod(shape[:-1]), math.prod(lead))
        )
    return _is_any(shape, [(*lead, 1), lead]) or (
        len(shape) not in (len(lead), len(lead) + 1) and _is_equal(math.prod(shape), math.prod(lead))
    )


def _broadcasts(sizes: Sizes, whole: Sizes) -> bool:
    return len(sizes) <= len(whole) and all(
        _is_equal(size, 1) or _is_equal(size, of_whole)
        for size, of_whole in zip(reversed(sizes), reversed(whole), strict=False)
    )


def _is_any(sizes: Sizes, allowed: Sequence[Sizes]) -> bool:
    return any(_are_equal(sizes, others) for others in allowed)


def _are_equal(sizes: Sizes, others: Sizes) -> bool:
    return len(sizes) == len(others) and all(map(_is_equal, sizes, others))


def _is_equal(size: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Whether two sizes are equal; of symbols, whether they may be."""
    if isinstance(size, int) and isinstance(other, int):
        return size == other
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import

    return not statically_known_true(size != other)


# --- what is allowed, in words ---


def allowed_a(program: Program) -> str:
    shape = "(batch, M, K)" if program.batched else "(..., S, K)" if program.splits_heads else "(..., K)"
    return f"{shape} with K = {program.k}"


def allowed_factor(program: Program, factor: Factor) -> str:
    n, k = factor.n, factor.k
    if n is None:
        return f"a's leading sizes and K = {k}"
    if program.batched:
        return f"({n}, {k}), (batch, {n}, {k}) or {_two_of_batches(f'{n}, {k}')}"
    return f"({n}, {k})"


def allowed_operand(program: Program, input: Input) -> str:
    n, batched, operand = input.n, program.batched, input.operand
    if operand.space is Space.ROW:
        if batched:
            return f"({n},), (batch, {n}), (batch, 1, {n}) or {_two_of_batches(f'1, {n}')}"
        return f"({n},)"
    if operand.space is Space.COLUMN:
        if batched:
            return f"(M,), (M, 1), (batch, M), (batch, M, 1) or {_two_of_batches('M, 1')}"
        return "a's leading sizes, with or without a 1 behind them, or the same flattened"
    if batched:
        shapes = f"(batch, M, {n}) or {_two_of_batches(f'M, {n}')}"
        return f"what broadcasts to {shapes}" if operand.strided else f"(M, {n}), {shapes}"
    what = "what broadcasts to " if operand.strided else ""
    return f"{what}(..., {n}) with a's leading sizes, or the same flattened to (M, {n})"


def _two_of_batches(matrix: str) -> str:
    return f"(outer, inner, {matrix}) with outer * inner batches, of which either may be 1"


# --- the checks that name an argument ---


def check_count(what: str, got: int, allowed: int) -> None:
    if got != allowed:
        raise ArgumentError(_OP, what, f"a list of {got}", str(allowed))


def _check_kind(name: str, a: Tensor, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype is not dtype:
        raise DTypeError(_OP, name, str(tensor.dtype), str(dtype))
    if tensor.device != a.device:
        raise DeviceError(_OP, name, f"on {tensor.device}", f"a's device, {a.device}")


_UNMARKED = ", as this output is not marked as strided (FusedSpec.strided marks it)"


def _check_strides(program: Program, name: str, output: Output, space: Space, tensor: Tensor) -> None:
    if space in (Space.ROW, Space.SCALAR) or tensor.numel() == 0:
        return
    places = memory.places(tensor, batched=program.batched, space=space, heads=output.heads is not None)
    if space is Space.TILE and not moves_rows(program.links[-1], output):
        if len(places.rows) > 2:
            raise _strides(name, tensor, "rows that at most two strides walk")
        return
    if len(places.rows) > 1:
        raise _strides(name, tensor, "rows that one stride walks")
    if space is not Space.COLUMN and any(stride != 1 for _, stride in places.columns):
        raise _strides(name, tensor, f"contiguous columns{_UNMARKED if space is Space.TILE else ''}")
    run = min(16, 8 * tensor.element_size())
    if space is Space.TILE and not places.aligned(run):
        raise _strides(name, tensor, f"rows that start at multiples of {run} bytes{_UNMARKED}")


def _shape(name: str, tensor: Tensor, allowed: str, a: Tensor | None = None) -> ShapeError:
    beside = "" if a is None else f", for a of shape {tuple(a.shape)}"
    return ShapeError(_OP, name, f"of shape {tuple(tensor.shape)}", allowed + beside)


def _strides(name: str, tensor: Tensor, allowed: str) -> ArgumentError:
    return ArgumentError(_OP, name, f"of strides {tensor.stride()}", allowed)
