"""Tensors as csrc/include/comfuse/abi.h describes them, in Python: for launches past the binding."""

from __future__ import annotations

from torch import Tensor

from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Major, Space
from comfuse.library import abi

# (size, stride) of what one stride walks.
Level = tuple[int, int]


def factor(spec: FusedSpec, major: Major, t: Tensor) -> abi.Tensor:
    """A (..., K) or a B (N, K); batched, with one or two dimensions of batches before, or shared."""
    first = t.dim() - 2 if spec.batched else 0
    columns = (t.shape[-1], t.stride(-1))
    (rows,) = _levels(t, range(first, t.dim() - 1), 1)
    far = rows if major is Major.K else columns
    near = columns if major is Major.K else rows
    stride = far[1] if far[0] > 1 else -(-near[0] // 8) * 8
    return _tensor(t, stride=stride, **_batches(t, first))


def operand(spec: FusedSpec, space: Space, t: Tensor, m: int) -> abi.Tensor:
    """A tile (..., N), a row vector (N,) or a column vector (..., 1) of ``m`` rows; batched as a factor."""
    if space is Space.ROW:
        return _tensor(t, stride=t.stride(-1), **_batches(t, t.dim() // 2 if spec.batched else 0))
    if space is Space.COLUMN:
        t = t[..., None] if t.shape[-1] != 1 or (spec.batched and t.dim() == 2 and m == 1) else t
    return _rows(spec, t, range(t.dim() - 1), [t.dim() - 1])


def output(spec: FusedSpec, index: int, t: Tensor) -> abi.Tensor:
    """An output in the shape in which the op gives it."""
    slot = spec.outputs[index]
    space = spaces(spec)[slot.node]
    if space is Space.SCALAR:
        return _tensor(t, stride=0, batch_stride=0)
    if space is Space.ROW:
        return _tensor(t, stride=t.stride(0), batch_stride=0)
    if space is Space.COLUMN:
        return _rows(spec, t, range(t.dim()), [])
    last = t.dim() - 1
    columns = [last - 2, last] if slot.heads is not None else [last]
    return _rows(spec, t, [i for i in range(last) if i not in columns], columns)


def _batches(t: Tensor, dims: int) -> dict[str, int]:
    """Of the batches, which are the first ``dims`` dimensions; of none, of one that all share."""
    (period, stride), (_, outer) = _levels(t, range(dims), 2)
    return {"batch_period": period, "batch_stride": stride, "batch_outer": outer}


def _rows(spec: FusedSpec, t: Tensor, rows: range | list[int], columns: list[int]) -> abi.Tensor:
    first = len(rows) - 1 if spec.batched else 0
    row = _levels(t, list(rows)[first:], 2)
    column = _levels(t, columns, 2)
    return _tensor(
        t,
        stride=row[0][1] if row[0][0] > 1 else -(-spec.n // 16) * 16,
        **_batches(t, first),
        row_period=row[0][0],
        row_outer=row[1][1],
        column_stride=column[0][1] if column[0][0] > 1 else 1,
        column_period=column[0][0],
        column_outer=column[1][1],
    )


def _levels(t: Tensor, dims: range | list[int], count: int) -> list[Level]:
    """These dimensions, innermost first, in as few levels as there can be, filled up to ``count``."""
    levels: list[Level] = []
    for i in reversed(dims):
        size, stride = t.shape[i], t.stride(i)
        if size == 1:
            continue
        if levels and stride == levels[-1][0] * levels[-1][1]:
            levels[-1] = (levels[-1][0] * size, levels[-1][1])
        else:
            levels.append((size, stride))
    if len(levels) > count:
        raise ValueError(f"{tuple(t.shape)} with strides {t.stride()} cannot be walked with {count} strides")
    return levels + [(1, 0)] * (count - len(levels))


def _tensor(t: Tensor, **fields: int) -> abi.Tensor:
    return abi.Tensor(data=t.data_ptr(), **{"batch_period": 1, "row_period": 1, "column_period": 1, **fields})
