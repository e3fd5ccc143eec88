"""Any spec or chain, as a function call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from comfuse.errors import ArgumentError, ComFuseError, GradientError
from comfuse.ops import faults, programs, resolver
from comfuse.ops.checks import check_count
from comfuse.ops.schema import ALONE, FIXED, FIXED_SCALARS, GENERAL, MAX_FIXED, OUT
from comfuse.ops.tracing import constant_when_traced
from comfuse.ops.transforms import in_forward_mode, refuse_tangents

_parse = programs.parse
_NO_GRADIENT = (
    "a tensor requires a gradient, which a spec does not have: call it under torch.no_grad(), or a named op"
)


@constant_when_traced
def _counts(spec: str) -> tuple[int, int]:
    """How many outputs and scalars a call of the spec has."""
    program = _parse(spec)
    return len(program.outputs), program.scalar_count


def region(
    spec: str, a: Tensor, b: Tensor, operands: Sequence[Tensor] = (), scalars: Sequence[float] = ()
) -> list[Tensor]:
    """Runs a spec or a chain, given as its canonical text, as one fused kernel.

    Args:
        spec: ``FusedSpec.text()`` or ``ChainSpec.text()``.
        a: (..., K) in the spec's dtype, or (batch, M, K) for a batched spec, in the layout that the spec
            names.  One whose rows (columns, where M is contiguous) cannot be walked with a single stride, or
            that is not aligned to 16 bytes, is copied first (counted); the same holds for ``b`` and for tile
            operands that are not strided.
        b: (N, K) in the spec's dtype, for a batched spec also (batch, N, K) or (outer, inner, N, K).
        operands: the second product's B, if the spec has two products, behind its A, of a's leading sizes,
            if it does not share the first one's; then the spec's non-scalar operands in
            order, in the spec's dtypes; of a chain, then the B of its second link and the operands of that
            one, over its own N.  A tile: (..., N) with a's leading sizes or (M, N), for a strided one
            whatever broadcasts to that; its leading dimensions are walked in two strides, and copied first
            (counted) where that cannot be.  A row vector: (N,), for a batched spec also (batch, N) or
            (batch, 1, N).  A column vector: a's leading sizes, with or without a 1 behind them, or (M,).
            For a batched spec each also with two dimensions (outer, inner) in the place of the batch, which
            is number outer * inners + inner: (outer, inner, M, N), (outer, inner, 1, N) or (outer, inner, M,
            1).  Either may be 1 for all that there are of it: what varies only from sequence to sequence, or
            only from head to head, is read in place.
        scalars: the scalar operands in order, of a chain link by link.

    A chain that cannot be one kernel here runs as one region a link, which is counted.

    Returns:
        One tensor an output, contiguous, with a's leading sizes L: (*L, N) for a tile, or
        (*L[:-1], N / D, L[-1], D) if it is split in heads of size D; (*L, N / group) for groups; L for a
        column vector; (N,) for a row vector; () for a scalar.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument does not fit the spec.
        SpecError: the spec is malformed.
        GradientError: a tensor requires a gradient; a spec has none.
        BuildError, LoadError, LaunchError: its kernel does not compile, or cannot be run.
        CacheError, ToolchainError: nothing can be built and ``COMFUSE_JIT`` is require.
        FallbackError: it cannot be fused here and ``COMFUSE_STRICT`` is 1.
    """
    if in_forward_mode():
        refuse_tangents("region", (a, b, *operands))
    try:
        count = len(operands)
        outputs, numbers = _counts(spec)
        if len(scalars) != numbers:
            check_count("scalars", len(scalars), numbers)
        if count > MAX_FIXED or numbers > FIXED_SCALARS:
            outputs = 0
        # Where an input requires a gradient, the dispatcher has marked the results; its own answer would be a
        # warning, at the backward.
        if outputs == 1:
            y = FIXED[1][count](spec, a, b, *operands, *scalars)
            results, refused = [y], y.requires_grad
        else:
            if outputs in FIXED:
                results = list(FIXED[outputs][count](spec, a, b, *operands, *scalars))
            elif count:
                results = GENERAL(spec, a, b, list(operands), list(scalars))
            else:
                results = ALONE(spec, a, b, list(scalars))
            refused = any(y.requires_grad for y in results)
    except ComFuseError:
        raise
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _explained("region", e, spec, (a, b, operands, scalars)) from None
    if refused:
        raise GradientError("region", _NO_GRADIENT)
    return results


def region_out(
    spec: str,
    a: Tensor,
    b: Tensor,
    operands: Sequence[Tensor],
    scalars: Sequence[float],
    out: Sequence[Tensor],
) -> None:
    """:func:`region`, writing to tensors of the caller's.

    Args:
        out: one tensor an output, of the shape that :func:`region` gives and the output's dtype.  Each has
            memory of its own: no two elements at one place, none that an input or another output has.  A
            tile that the spec marks as strided (``FusedSpec.strided`` does) may have any strides whose rows
            can be walked in two levels; another has contiguous columns and rows one stride apart that start
            at multiples of 16 bytes (8 for dtypes of one byte), but lies as a strided one may where rows of N
            elements are no multiple of 16 bytes.  Vectors have one stride, groups contiguous columns and rows
            one stride apart.

    Raises:
        As :func:`region`; ArgumentError also for an output's strides and for memory that is not its own.
    """
    if in_forward_mode():
        refuse_tangents("region_out", (a, b, *operands, *out))
    try:
        if torch.is_grad_enabled() and any(t.requires_grad for t in (a, b, *operands, *out)):
            raise GradientError("region_out", _NO_GRADIENT)
        check_count("scalars", len(scalars), _counts(spec)[1])
        OUT(spec, a, b, list(operands), list(scalars), list(out))
    except ComFuseError:
        raise
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _explained("region_out", e, spec, (a, b, operands, scalars, out)) from None
    if not torch.compiler.is_compiling():  # a graph knows what its ops mutate
        torch.autograd.graph.increment_version(list(out))  # so that autograd sees what it saved change


def _explained(op: str, error: Exception, spec: Any, values: tuple[Any, ...]) -> Exception:
    """The error to raise for a call that failed with ``error``: an argument of the wrong type, if there is
    one.
    """
    if not isinstance(spec, str):
        return ArgumentError(op, "spec", f"of type {type(spec).__name__}", "its text: spec.text()")
    a, b, operands, scalars, *out = values
    tensors: dict[str, Any] = {"a": a, "b": b}
    for name, listed in zip(("operands", "out"), (operands, *out), strict=False):
        tensors |= {f"{name}[{i}]": t for i, t in enumerate(listed)}
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            return ArgumentError(op, name, f"of type {type(value).__name__}", "a torch.Tensor")
        fault = faults.of_layout(op, name, value)
        if fault is not None:
            return fault
    fault = faults.of_scalars(op, {f"scalars[{i}]": x for i, x in enumerate(scalars)})
    if fault is not None:
        return fault
    return resolver.translate(error, op) if isinstance(error, RuntimeError) else error
