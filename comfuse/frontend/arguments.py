"""How an argument of the function becomes a tensor of the region: sliced, permuted, expanded, reshaped.

All of it is done on strides where strides can say it.  A copy is counted (:mod:`comfuse.fallbacks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from comfuse import fallbacks
from comfuse.frontend import axes
from comfuse.frontend.axes import Atom, Axis, Shape
from comfuse.frontend.views import Picked
from comfuse.generator.spec import Major


def count_copy(name: str, reason: str) -> None:
    """Counts a copy beside the kernel."""
    fallbacks.note("comfuse.fuse", f"{name} copied: {reason}")


@dataclass(frozen=True)
class Arrangement:
    """The steps from a tensor to one whose dimensions follow the axes, for tensors of one shape.

    Attributes:
        of: the tensor's shape.
        slices: of the tensor's dimensions, or None where it is read whole.
        split: the shape with a dimension for each atom.
        order: the atoms by axis, and by falling stride.
        expanded: the shape in that order, with ones for what the tensor does not vary over.
        repeated: the same with their sizes.
        shape: of the result.
    """

    of: Shape
    slices: tuple[slice, ...] | None
    split: Shape
    order: tuple[int, ...]
    expanded: Shape
    repeated: Shape
    shape: Shape

    @property
    def is_identity(self) -> bool:
        return (
            self.of == self.shape
            and self.slices is None
            and self.repeated == self.expanded
            and self.order == tuple(range(len(self.order)))
        )

    def is_of_two_levels(self, batched: bool) -> bool:
        """Whether the result is (outer, inner, M, N): what varies over a part of a program's batches."""
        return batched and len(self.shape) == 4

    def strided(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor before its dimensions are merged into those of the result; never a copy."""
        if self.slices is not None:
            tensor = tensor[self.slices]
        return tensor.view(self.split).permute(self.order).view(self.expanded).expand(self.repeated)

    def _strides(self, tensor: torch.Tensor) -> Shape | None:
        """The strides of the result, if it is a view of the tensor."""
        if self.is_identity:
            return tensor.stride()
        arguments = self, tuple(tensor.shape), tensor.stride()
        try:  # the same few are asked for again and again, for each part of a graph
            return _remembered_strides(*arguments)
        except TypeError:  # no hash: of a symbol, and before Python 3.12 of a slice
            return _view_strides(*arguments)

    def major(self, tensor: torch.Tensor) -> Major:
        """Which of the last two dimensions of the result, a factor, is contiguous."""
        strides = self._strides(tensor)
        if strides is None:  # copied, row by row
            return Major.K
        return Major.MN if len(strides) > 1 and strides[-1] != 1 and strides[-2] == 1 else Major.K

    def reason_to_copy(self, tensor: torch.Tensor) -> str:
        """Why the result is a copy, or nothing if it is a view."""
        if self.is_identity or self._strides(tensor) is not None:
            return ""
        if self.repeated != self.expanded:
            return "it varies over a part of the rows or columns that it is read for"
        return "no strides describe it in the order of the GEMM's rows and columns"

    def apply(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The result; copies, and counts it, if strides cannot say it."""
        if self.is_identity:
            return tensor
        found = self.strided(tensor)
        try:
            return found.view(self.shape)
        except RuntimeError:
            count_copy(name, self.reason_to_copy(tensor))
            return found.reshape(self.shape)


def _view_strides(arrangement: Arrangement, sizes: Shape, strides: Shape) -> Shape | None:
    with unset_fake_temporarily():  # torch.compile's mode makes it ten times slower
        meta = torch.empty_strided(sizes, strides, device="meta")
        try:
            return arrangement.strided(meta).view(arrangement.shape).stride()
        except (RuntimeError, ValueError):  # torch has no other way to ask; while it compiles, the latter
            return None


_remembered_strides = lru_cache(maxsize=4096)(_view_strides)


def converted(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """A factor in the dtype of the product, as autocast converts it."""
    fallbacks.note("comfuse.fuse", f"{name} converted from {tensor.dtype} to {dtype} before the kernel")
    return tensor.to(dtype)


def arrange(dims: Sequence[Picked], extents: Sequence[tuple[Axis, int]], shape: Shape) -> Arrangement:
    """The steps to a tensor of ``shape`` that runs over the axes of ``extents`` in this order.

    ``dims`` are the argument's; what they leave out of an axis is repeated.
    """
    slices = tuple(
        slice(d.start, d.start + d.step * (d.count - 1) + 1 if d.count else d.start, d.step) for d in dims
    )
    split = [(number, atom) for number, atom in enumerate(a for d in dims for a in d.walk)]
    order: list[int] = []
    expanded: list[int] = []
    repeated: list[int] = []
    for axis, extent in extents:
        own = sorted(((n, a) for n, a in split if a.axis is axis), key=lambda item: -item[1].stride)
        order += [number for number, _ in own]
        for atom, is_own in _completed([a for _, a in own], extent):
            expanded.append(atom.size if is_own else 1)
            repeated.append(atom.size)
    return Arrangement(
        of=tuple(d.size for d in dims),
        slices=None if all(d.is_whole for d in dims) else slices,
        split=tuple(atom.size for _, atom in split),
        order=tuple(order),
        expanded=tuple(expanded),
        repeated=tuple(repeated),
        shape=shape,
    )


def _completed(atoms: list[Atom], extent: int) -> list[tuple[Atom, bool]]:
    """The atoms and what is missing between them, by falling stride; with whether each was there."""
    missing = axes.gaps(atoms, extent)
    assert missing is not None, (atoms, extent)
    both = [(atom, True) for atom in atoms] + [(atom, False) for atom in missing]
    return sorted(both, key=lambda item: (-item[0].stride, item[1]))
