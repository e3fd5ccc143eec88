"""Operands of a program as tensors of (batch, M, N) that may have ones for sizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch

from comfuse.errors import ArgumentError
from comfuse.generator.spec import FusedSpec, Operand, Space

Tensor = torch.Tensor


def load(
    spec: FusedSpec,
    leading: torch.Size,
    operands: Sequence[Tensor],
    scalars: Sequence[float],
    device: torch.device,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Operands in the order of the spec, in ``dtype``.

    Args:
        leading: the sizes of A before its last; (batch, M) of a batched spec.

    Raises:
        ArgumentError: too few or too many operands or scalars, or one of the wrong size.
    """
    scalar_count = sum(operand.space is Space.SCALAR for operand in spec.operands)
    tensor_count = len(spec.operands) - scalar_count
    if len(operands) != tensor_count:
        raise ArgumentError("reference", "operands", f"{len(operands)} tensors", f"{tensor_count} tensors")
    if len(scalars) != scalar_count:
        raise ArgumentError("reference", "scalars", f"{len(scalars)} values", f"{scalar_count} values")
    tensors, numbers = iter(operands), iter(scalars)
    loaded = []
    for operand in spec.operands:
        if operand.space is Space.SCALAR:
            loaded.append(torch.tensor(float(next(numbers)), dtype=dtype, device=device))
        else:
            loaded.append(_tensor(spec, operand, next(tensors), leading).to(dtype))
    return loaded


def over_batches(tensor: Tensor, batches: int) -> Tensor:
    """An (outer, inner, rows, columns) tensor as (batches, rows, columns); others as they are.

    Either of the two in front may be 1 for all that there are of it.

    Raises:
        ValueError: they do not make up the batches.
    """
    if tensor.ndim != 4:
        return tensor
    outer, inner, *matrix = tensor.shape
    if outer * inner != batches:
        if 1 not in (outer, inner) or 0 in (outer, inner) or batches % (outer * inner):
            raise ValueError(f"{outer} * {inner} are not {batches}")
        outer, inner = (outer, batches // outer) if inner == 1 else (batches // inner, inner)
    return tensor.expand(outer, inner, *matrix).reshape(batches, *matrix)


def _tensor(spec: FusedSpec, operand: Operand, tensor: Tensor, leading: torch.Size) -> Tensor:
    batch, m = (leading[0], leading[1]) if spec.batched else (1, leading.numel())
    m_size, n_size = {
        Space.TILE: (m, spec.n),
        Space.ROW: (1, spec.n),
        Space.COLUMN: (m, 1),
    }[operand.space]
    given = tensor
    if spec.batched and tensor.ndim == 4:
        with suppress(ValueError):
            tensor = over_batches(tensor, batch)
    if operand.space is Space.TILE and operand.strided:
        whole = (*leading, spec.n)
        # The rows of a (S, N) operand repeat, of a (B, 1, N) one stand for S each.
        if tensor.numel() != torch.Size(whole).numel() and _broadcasts(tensor, whole):
            tensor = tensor.expand(whole)
    for batches in (batch, 1):
        if tensor.numel() == batches * m_size * n_size and _is_placed(
            spec, operand, tensor, leading, batches
        ):
            return tensor.reshape(batches, m_size, n_size)
    sizes = f"{m_size} x {n_size}" if operand.space is Space.TILE else str(m_size * n_size)
    allowed = f"{sizes} elements, or {batch} times as many" if spec.batched else f"{sizes} elements"
    raise ArgumentError("reference", operand.name, f"a tensor of shape {tuple(given.shape)}", allowed)


def _is_placed(spec: FusedSpec, operand: Operand, tensor: Tensor, leading: torch.Size, batches: int) -> bool:
    """Whether a tensor of the right number of elements has them in the right dimensions.

    Only of a batched program: elsewhere the leading sizes may be folded in any way.
    """
    if not spec.batched:
        return True
    m = leading[1]
    shapes = {
        Space.TILE: [(m, spec.n)],
        Space.ROW: [(spec.n,), (1, spec.n)],
        Space.COLUMN: [(m,), (m, 1)],
    }[operand.space]
    shape = tuple(tensor.shape)
    return shape in [(batches, *s) for s in shapes] or (batches == 1 and shape in shapes)


def _broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    sizes = tuple(tensor.shape)
    return len(sizes) <= len(shape) and all(
        size in (1, whole) for size, whole in zip(reversed(sizes), reversed(shape), strict=False)
    )
