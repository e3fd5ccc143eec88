"""Where the elements of a tensor lie: the rules of csrc/binding/overlap.cpp and layout.cpp for outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from comfuse.generator.spec import Space

Level = tuple[int, int]  # a size, and the stride between so many elements
_WHOLE_MEMORY = 2**63 - 1


def may_overlap_itself(tensor: Tensor) -> bool:
    """True unless every element of the tensor surely has a place of its own."""
    if tensor.numel() == 0:
        return False
    reach = 0  # of the dimensions so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def may_overlap(x: Tensor, y: Tensor) -> bool:
    """True unless the two surely share no byte: their ranges of memory are apart, or they take different
    parts of each period of a common stride (two slices of the columns of one buffer).
    """
    if x.numel() == 0 or y.numel() == 0:
        return False
    periods = [
        stride * tensor.element_size()
        for tensor in (x, y)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    ]
    return not any(period and _apart_in_each(period, x, y) for period in (_WHOLE_MEMORY, *periods))


def _apart_in_each(period: int, x: Tensor, y: Tensor) -> bool:
    span_x, span_y = _span(x, period), _span(y, period)
    ahead = (y.data_ptr() - x.data_ptr()) % period  # how far y begins behind x, within a period
    return span_x is not None and span_y is not None and span_x <= ahead <= period - span_y


def _span(tensor: Tensor, period: int) -> int | None:
    """Bytes from the first element to the end of the last, over the dimensions whose stride is less than
    ``period`` bytes; None if one of the others is no multiple of it.
    """
    item = tensor.element_size()
    total = item
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size == 1:
            continue
        if stride * item < period:
            total += (size - 1) * stride * item
        elif stride * item % period:
            return None
    return total


def collapse(levels: Sequence[Level]) -> list[Level]:
    """Dimensions, outermost first, as few as there can be: neighbours that one stride walks are one."""
    result: list[Level] = []
    for size, stride in reversed(levels):
        if size == 1:
            continue
        if result and stride == result[-1][1] * result[-1][0]:
            result[-1] = (result[-1][0] * size, result[-1][1])
        else:
            result.append((size, stride))
    return result[::-1]


@dataclass(frozen=True)
class Places:
    """How an output lies in memory: strides that are not of the batch, innermost last."""

    rows: list[Level]
    columns: list[Level]
    starts: list[int]  # bytes that every row begins at a sum of multiples of

    def aligned(self, bytes: int) -> bool:
        return all(start % bytes == 0 for start in self.starts)


def places(tensor: Tensor, *, batched: bool, space: Space, heads: bool) -> Places:
    """The rows and columns of an output (M, N), (M, N / group) or (M,), with any leading dimensions."""
    levels = list(zip(tensor.shape, tensor.stride(), strict=True))
    columns = [levels.pop()] if space in (Space.TILE, Space.GROUP) else []
    if heads:
        columns.insert(0, levels.pop(-2))
    batch = [levels.pop(0)] if batched else []
    rows = collapse(levels)
    strides = [stride for size, stride in (*batch, *rows) if size > 1]
    starts = [tensor.data_ptr(), *(stride * tensor.element_size() for stride in strides)]
    return Places(rows, collapse(columns), starts)
