"""Output tensors of one launch, in any layout, in the middle of memory that must stay as it was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comfuse.generator.spec import FusedSpec, Space
from tests.gpu.algebra import TORCH_DTYPES

GUARD_ROWS = 130  # rows behind an output that must stay as they were: more than a tile's
PATTERNS = (0xFF, 0x55)  # the first is NaN in every floating dtype
_FRONT = 128  # elements before an output, which keep it aligned


@dataclass(frozen=True)
class Slot:
    """An output in its place: ``flat`` is all of the memory, ``view`` the output as the op gives it."""

    name: str
    space: Space
    flat: Tensor
    view: Tensor
    batches: int | None  # None: not batched
    heads: bool

    @property
    def tiles(self) -> Tensor:
        """The output in the order in which results are compared: see ordered."""
        return ordered(self.view, self.space, self.batches, heads=self.heads)

    def fill(self, pattern: int) -> None:
        self.flat.view(torch.uint8).fill_(pattern)

    def guards(self) -> Tensor:
        """The bytes around the output: one row an element."""
        around = torch.ones(self.flat.shape, dtype=torch.bool, device=self.flat.device)
        around.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).fill_(False)
        return self.flat.view(torch.uint8).view(-1, self.flat.element_size())[around]


class Outputs:
    """The outputs of one launch of a spec.

    Args:
        lead: A's leading sizes; with the spec batched, (batches, M).
        layouts: by the outputs' names, how a tile lies in memory: "columns" (column-major), "slice" (rows
            and columns of a larger matrix, at an odd address), "aligned-slice" (sixteen more columns on each
            side).  Others are contiguous.
    """

    def __init__(
        self,
        spec: FusedSpec,
        spaces: Sequence[Space],
        lead: tuple[int, ...],
        layouts: Mapping[str, str] | None = None,
        device: str = "cuda",
    ) -> None:
        layouts = layouts or {}
        self.slots = [
            _slot(spec, output.name, space, lead, layouts.get(output.name, ""), device)
            for output, space in zip(spec.outputs, spaces, strict=True)
        ]
        self.poison()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """As the op gives them."""
        return tuple(slot.view for slot in self.slots)

    @property
    def tiles(self) -> tuple[Tensor, ...]:
        """As the reference gives them: see Slot."""
        return tuple(slot.tiles for slot in self.slots)

    def poison(self, pattern: int = PATTERNS[0]) -> None:
        for slot in self.slots:
            slot.fill(pattern)

    def check_guards(self, pattern: int = PATTERNS[0]) -> None:
        """Nothing was written around any output."""
        for slot in self.slots:
            wrong = slot.guards() != pattern
            assert not bool(wrong.any()), f"{slot.name}: {int(wrong.sum())} bytes around it were written"

    def check_finite(self) -> None:
        """Every element was written, and none is NaN: only where no NaN can come of the inputs."""
        for slot in self.slots:
            if slot.view.is_floating_point():
                spoilt = int(slot.view.float().isnan().sum())
                assert spoilt == 0, f"{slot.name}: {spoilt} elements are NaN or unwritten"


def shape_of(spec: FusedSpec, name: str, space: Space, lead: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an output as the op gives it."""
    heads = next(o.heads for o in spec.outputs if o.name == name)
    if heads is not None:
        return (*lead[:-1], spec.n // heads, lead[-1], heads)
    return {
        Space.TILE: (*lead, spec.n),
        Space.COLUMN: lead,
        Space.GROUP: (*lead, spec.n // (spec.group or spec.n)),
        Space.ROW: (spec.n,),
        Space.SCALAR: (),
    }[space]


def _slot(spec: FusedSpec, name: str, space: Space, lead: tuple[int, ...], layout: str, device: str) -> Slot:
    output = next(o for o in spec.outputs if o.name == name)
    shape = shape_of(spec, name, space, lead)
    strides, offset = _place(shape, layout)
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    behind = GUARD_ROWS * (shape[-1] if space in (Space.TILE, Space.GROUP) else 1)
    size = -(-(offset + max(span, 0) + behind) // 16) * 16
    flat = torch.empty(size, dtype=TORCH_DTYPES[output.dtype], device=device)
    view = flat.as_strided(shape, strides, offset)
    return Slot(name, space, flat, view, lead[0] if spec.batched else None, output.heads is not None)


def _place(shape: tuple[int, ...], layout: str) -> tuple[tuple[int, ...], int]:
    """Strides, and the offset of the first element."""
    order = list(shape)
    if layout == "columns":
        order[-1], order[-2] = shape[-2] + 3, shape[-1]
    elif layout == "slice":
        order[-1] += 5
    elif layout == "aligned-slice":
        order[-1] += 32
    strides = [math.prod(order[i + 1 :]) for i in range(len(order))]
    if layout == "columns":
        strides[-1], strides[-2] = strides[-2], strides[-1]
    return tuple(strides), _FRONT + {"slice": 3, "aligned-slice": 16}.get(layout, 0)


def ordered(x: Tensor, space: Space, batches: int | None, *, heads: bool = False) -> Tensor:
    """An output of the op as (M, N) of a tile, (M,) of a column, (M, N / group) of groups, (N,) of a row, ()
    of a scalar; batched, with the batches in front.
    """
    if space in (Space.ROW, Space.SCALAR):
        return x
    lead = () if batches is None else (batches,)
    if space is Space.COLUMN:
        return x.reshape(*lead, -1)
    if heads:
        x = x.transpose(-3, -2).flatten(-2)
    return x.reshape(*lead, -1, x.shape[-1])


def picked(x: Tensor, space: Space, rows: Tensor) -> Tensor:
    """Some rows of a tensor in the order of Outputs.tiles."""
    if space in (Space.ROW, Space.SCALAR):
        return x
    dim = -1 if space is Space.COLUMN else -2
    if x.element_size() > 1:
        return x.index_select(dim, rows)
    return x.view(torch.uint8).index_select(dim, rows).view(x.dtype)  # fp8 has no index_select


def bits(t: Tensor) -> Tensor:
    """The bit patterns: NaNs compare equal too."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return t.contiguous().view(whole[t.element_size()])


def poison_allocator(*likes: Tensor, copies: int = 4) -> None:
    """Leave NaN in memory that the caching allocator hands out next for tensors of these sizes."""
    held = [torch.full_like(t, float("nan")) for t in likes for _ in range(copies)]
    torch.cuda.synchronize()
    del held
