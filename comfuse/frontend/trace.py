"""From a function and example inputs to a traced region that holds for as many calls as it can.

A size of 1 says little: it may be the number of rows, or a broadcast.  So a function is traced with other
numbers of rows than its inputs', at least two in each of their dimensions, and again with others, a few more
and many more.  Where all of that agrees with what the inputs themselves give, the region holds for every
number of rows; for a single one, which torch may treat in another way, :func:`holds_for` asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from comfuse.frontend import views
from comfuse.frontend.capture import Captured, capture
from comfuse.frontend.errors import TraceError
from comfuse.frontend.forms import Rows
from comfuse.frontend.gemm import FACTORS, Products
from comfuse.frontend.lower import lower
from comfuse.frontend.lowered import Read
from comfuse.frontend.region import TracedRegion

#: Held while a function is traced, which torch can do for one thread of a process at a time.
TRACING = threading.RLock()


def trace_region(fn: Callable[..., Any], inputs: Sequence[Any]) -> TracedRegion:
    """Captures and lowers ``fn(*inputs)``.

    Raises:
        ArgumentError, DeviceError: an input that cannot be traced.
        TraceError: a function that is not one fused kernel.
    """
    with TRACING:
        region = _traced(fn, inputs)
    call = region.call(inputs)
    return replace(region, lead=call.lowered.lead_shape, notes=call.notes(inputs))


def holds_for(fn: Callable[..., Any], region: TracedRegion, inputs: Sequence[Any]) -> bool:
    """Whether a region, which accepts the inputs, gives what the function would: it may do something else
    with a dimension of a single row (``squeeze``), or of none.
    """
    traced = [x if shape is None else _like(x, shape) for x, shape in zip(inputs, region.shapes, strict=True)]
    with TRACING:
        try:
            then, now = capture(fn, traced), capture(fn, inputs)
        except TraceError:
            return False
    return (
        _operators(then) == _operators(now)
        and (then.scalars, then.structure) == (now.scalars, now.structure)
        and region.call(inputs).result_shapes() == [views.shape_of(node) for node in now.outputs]
    )


def _traced(fn: Callable[..., Any], inputs: Sequence[Any]) -> TracedRegion:
    captured = capture(fn, inputs)
    for others in _with_more_rows(captured, inputs):
        region = _general(fn, others, captured, inputs)
        if region is not None:
            return region
    region = _region(captured, inputs)
    if region.lowered.reads_rows:
        return replace(region, any_rows=False)
    return region if _holds(fn, region, inputs) else replace(region, any_rows=False)


def _region(captured: Captured, inputs: Sequence[Any]) -> TracedRegion:
    tensors = [x if isinstance(x, torch.Tensor) else None for x in inputs]
    return TracedRegion(
        lowered=lower(captured),
        names=captured.names,
        structure=captured.structure,
        dtypes=tuple(None if x is None else x.dtype for x in tensors),
        shapes=tuple(None if x is None else tuple(x.shape) for x in tensors),
        constants=tuple(
            (i, x)
            for i, x in enumerate(inputs)
            if not isinstance(x, torch.Tensor) and i not in captured.scalars
        ),
    )


def _holds(fn: Callable[..., Any], region: TracedRegion, inputs: Sequence[Any]) -> bool:
    """Whether the function means the same for other rows, a few more and many more."""
    return all(_holds_with(fn, region, inputs, more) for more in (3, 1000))


def _holds_with(fn: Callable[..., Any], region: TracedRegion, inputs: Sequence[Any], more: int) -> bool:
    rows = _other_rows(region.lowered.rows, {link.spec.n for link in region.lowered.links}, more)
    expected = region.lowered.at(rows)
    others = [*inputs]
    for read in expected.reads:
        others[read.position] = _like(inputs[read.position], read.shape)
    try:
        found = _region(capture(fn, others), others)
    except TraceError:
        return False
    return found.lowered == expected


def _other_rows(rows: Rows, widths: set[int], more: int) -> Rows:
    sizes = [d + 2 * i + more for i, d in enumerate(rows.sizes)]
    while widths & {*sizes, Rows(tuple(sizes)).count}:
        sizes[-1] += 1
    return Rows(tuple(sizes))


# --- inputs with a single row, or none --------------------------------------------------------------------


def _general(
    fn: Callable[..., Any], others: list[Any], captured: Captured, inputs: Sequence[Any]
) -> TracedRegion | None:
    """The region traced with other inputs, if it is the same function and takes these too."""
    try:
        other = capture(fn, others)
        if _operators(other) != _operators(captured) or other.scalars != captured.scalars:
            return None
        region = _region(other, others)
    except TraceError:
        return None
    if region.lowered.reads_rows or not _holds(fn, region, others) or not region.accepts(inputs):
        return None
    results = region.call(inputs).result_shapes()
    expected = [views.shape_of(node) for node in captured.outputs]
    return region if results == expected else None


def _operators(captured: Captured) -> list[Any]:
    """What the function computes, whatever the sizes."""
    return [
        node.target
        for node in captured.graph.nodes
        if node.op == "call_function" and views.view_of(node) is None
    ]


def _with_more_rows(captured: Captured, inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Inputs with two or more rows, in place of such with one or none in a dimension of A's rows.

    Which dimensions of size 1 of the other arguments are rows is a guess: those of all tensors with as many
    dimensions as A first, then also one number a row, then none.
    """
    a = _left_factor(captured)
    if a is None:
        return
    tensor = inputs[a.position]
    small = [d for d, dim in enumerate(a.dims) if dim.size < 2]
    if not small:
        return
    sizes = {d: 5 + 2 * number for number, d in enumerate(small)}
    rank = tensor.dim()
    for ranks in ((rank,), (rank, rank - 1), ()):
        others = [*inputs]
        for i, x in enumerate(inputs):
            if not isinstance(x, torch.Tensor) or (i != a.position and x.dim() not in ranks):
                continue
            shape = [
                sizes[d] if d in sizes and x.shape[d] == tensor.shape[d] else x.shape[d]
                for d in range(x.dim())
            ]
            if tuple(shape) != tuple(x.shape):
                others[i] = _like(x, tuple(shape))
        yield others


def _left_factor(captured: Captured) -> Read | None:
    """A, if the graph has a product of arguments."""
    for node in captured.graph.nodes:
        if node.op == "call_function" and node.target in FACTORS:
            products = Products(captured.arguments, None)
            try:
                products.add(node)
            except TraceError:
                return None
            return products.a
    return None


def _like(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor without memory, its dimensions in memory in the order of those of ``x``.

    On the device of ``x``, since autocast depends on it.
    """
    order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))
    strides, step = [0] * x.dim(), 1
    for d in reversed(order):
        strides[d] = step
        step *= max(shape[d], 1)
    with FakeTensorMode():
        return torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
