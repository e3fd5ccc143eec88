"""Which tensors may share memory: held against every element's address."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from comfuse.ops import memory

SIZE = 256


@st.composite
def views(draw: st.DrawFn, buffer: Tensor) -> Tensor:
    """Any strided view into the buffer."""
    rank = draw(st.integers(0, 3))
    sizes = [draw(st.integers(0, 4)) for _ in range(rank)]
    strides = [draw(st.sampled_from([0, 1, 2, 3, 4, 5, 8, 12, 16, 24])) for _ in range(rank)]
    span = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size > 0)
    offset = draw(st.integers(0, SIZE - 1 - span))
    return buffer.as_strided(sizes, strides, offset)


def places(view: Tensor) -> list[int]:
    """The address of every element."""
    index = torch.zeros(tuple(view.shape), dtype=torch.int64)
    for dimension, stride in enumerate(view.stride()):
        shape = [1] * view.ndim
        shape[dimension] = -1
        index = index + torch.arange(view.shape[dimension]).view(shape) * stride
    return [view.data_ptr() + int(i) * view.element_size() for i in index.flatten()]


def bytes_of(view: Tensor) -> set[int]:
    return {place + i for place in places(view) for i in range(view.element_size())}


BUFFER = torch.zeros(SIZE)


@settings(max_examples=300, deadline=None)
@given(views(BUFFER))
def test_what_is_said_to_be_apart_from_itself_is(view: Tensor) -> None:
    if not memory.may_overlap_itself(view):
        assert len(set(places(view))) == view.numel()


@settings(max_examples=500, deadline=None)
@given(views(BUFFER), views(BUFFER.view(torch.int16)[: 2 * SIZE]))
def test_what_is_said_to_be_apart_is(x: Tensor, y: Tensor) -> None:
    apart = not memory.may_overlap(x, y)
    assert apart == (not memory.may_overlap(y, x))
    if apart:
        assert not bytes_of(x) & bytes_of(y)


def test_what_is_apart_in_practice_is_seen_to_be() -> None:
    wide = torch.zeros(8, 6, 32)
    for x, y in (
        (wide[..., :16], wide[..., 16:]),
        (wide[:, :2], wide[:, 2:]),
        (wide[:4], wide[4:]),
        (wide[0].t()[:3], wide[0].t()[3:]),
        (wide[..., :1], wide[..., 1:]),
        (wide[..., 5], wide[..., 6]),
        (wide[:, :2].flatten(0, 1)[:0], wide),
    ):
        assert not memory.may_overlap(x, y)
        assert not memory.may_overlap(y, x)
    for x, y in ((wide[..., :17], wide[..., 16:]), (wide, wide), (wide[0], wide[:, 0])):
        assert memory.may_overlap(x, y)
    for view in (wide, wide.permute(2, 0, 1), wide[::2, :, ::3], wide[:, 0], wide[0, 0, 0]):
        assert not memory.may_overlap_itself(view)


@settings(max_examples=300, deadline=None)
@given(views(BUFFER))
def test_levels_are_the_same_elements(view: Tensor) -> None:
    levels = memory.collapse(list(zip(view.shape, view.stride(), strict=True)))
    if view.numel():
        again = view.as_strided([size for size, _ in levels], [stride for _, stride in levels])
        assert places(again) == places(view)
        assert all(size > 1 for size, _ in levels)
