"""Where a value lies in the tile space, by the shapes that torch broadcasts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from comfuse.frontend.views import shape_of
from comfuse.generator.spec import Space

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A node of the spec and its place.

    ``shape`` is the one it has in the graph; a broadcasting ``expand`` leaves it as it was before.
    """

    node: int
    space: Space
    shape: Shape


# Of operators with several results, with None for one that a kernel does not have.
Result = Value | tuple[Value | None, ...]


@dataclass(frozen=True)
class Frame:
    """A shape that the inputs of a node broadcast to, and what its dimensions mean.

    ``tile``: the last dimension runs over N, the others over M.  Otherwise all of them run over M.
    """

    shape: Shape
    tile: bool


def frame_of(shape: Shape, inputs: Sequence[Value], m: int, n: int) -> Frame | None:
    """The frame of a node whose result has ``shape``; ``inputs`` are those that depend on the GEMM."""
    is_tile = shape[-1:] == (n,) and math.prod(shape[:-1]) == m
    if any(v.space is Space.TILE for v in inputs):
        return Frame(shape, True) if is_tile else None
    if is_tile and all(_padded(v.shape, shape)[-1] == 1 for v in inputs):
        return Frame(shape, True)  # a column that meets a row
    return Frame(shape, False) if math.prod(shape) == m else None


def classify(shape: Shape, frame: Frame, m: int, n: int) -> Space | None:
    """The space of an argument of ``shape`` that broadcasts to ``frame``.

    None if it varies over only a part of the rows or of the columns.

    With M = 1 a leading 1 may stand for the rows or for a broadcast: it stands for the rows where the
    argument has all the dimensions of the frame.
    """
    full_rank = len(shape) >= len(frame.shape)
    if len(shape) > len(frame.shape):
        if math.prod(shape[: -len(frame.shape) or None]) != 1:
            return None
        shape = shape[len(shape) - len(frame.shape) :]
    padded = _padded(shape, frame.shape)
    if not frame.tile:
        if padded == frame.shape and (m > 1 or full_rank):
            return Space.COLUMN
        return Space.SCALAR if math.prod(padded) == 1 else None
    lead = frame.shape[:-1]
    broadcast = math.prod(padded[:-1]) == 1
    rows = padded[:-1] == lead and math.prod(lead) == m and (m > 1 or full_rank)
    if not rows and not broadcast:
        return None
    if padded[-1] == n:
        return Space.TILE if rows else Space.ROW
    if padded[-1] == 1:
        return Space.COLUMN if rows else Space.SCALAR
    return None


def natural_shape(space: Space, frame: Frame, n: int) -> Shape:
    """The shape of an argument's value of ``space`` that broadcasts to ``frame``."""
    if space is Space.SCALAR:
        return ()
    if space is Space.ROW:
        return (n,)
    if space is Space.COLUMN and frame.tile:
        return (*frame.shape[:-1], 1)
    return frame.shape


def misfit(value: Value, frame: Frame, n: int) -> str:
    """Why broadcasting ``value`` to ``frame`` does not put it where its space says; empty if it does."""
    if value.space is Space.SCALAR:
        return ""
    padded = _padded(value.shape, frame.shape)
    if value.space is Space.TILE:
        fits = frame.tile and padded == frame.shape
    elif value.space is Space.COLUMN:
        fits = padded == (*frame.shape[:-1], 1) if frame.tile else padded == frame.shape
    else:
        fits = frame.tile and math.prod(padded) == n == padded[-1]
    if fits:
        return ""
    hint = "; keepdim=True in the reduction keeps it aligned" if value.space is Space.COLUMN else ""
    return (
        f"does not line up with the rows and columns of the GEMM's result (N = {n}) when it is broadcast to "
        f"{frame.shape}{hint}"
    )


def with_shapes(result: Result, node: torch.fx.Node) -> Result:
    """The result of a reduction with the shapes it has in the graph (keepdim or not)."""
    if isinstance(result, Value):
        return dataclasses.replace(result, shape=shape_of(node))
    return tuple(
        None if value is None else dataclasses.replace(value, shape=tuple(tensor.shape))
        for value, tensor in zip(result, node.meta["val"], strict=True)
    )


def _padded(shape: Shape, to: Shape) -> Shape:
    return (1,) * (len(to) - len(shape)) + shape
