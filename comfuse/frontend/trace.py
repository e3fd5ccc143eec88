"""From a function and example inputs to a traced region that holds for as many calls as it can.

A function may ask for its number of rows.  So it is traced a second time with symbols for them
(:mod:`.symbolic`), which notes what it asks; and what it was lowered to is compared with what comes of other
numbers, a few more and many more.  Where that agrees, the region holds for every number of rows of which what
the function asked is as true.

A size of 1 says little: it may be the number of rows, or a broadcast, and torch may treat it in another way.
So a function is traced with at least two in each dimension of its rows, and with one or none,
:func:`holds_for` compares all that it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from comfuse.frontend import views
from comfuse.frontend.capture import Captured, capture, like
from comfuse.frontend.errors import TraceError
from comfuse.frontend.forms import Rows
from comfuse.frontend.gemm import FACTORS, Products
from comfuse.frontend.lower import lower
from comfuse.frontend.lowered import Lowered, Read
from comfuse.frontend.region import TracedRegion

if TYPE_CHECKING:
    from comfuse.frontend.symbolic import Symbolic

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
    """Whether a region, which accepts the inputs, is what the function does, for a dimension of a single row
    (``squeeze``), or of none.
    """
    # Here, for it imports sympy, which takes as long as all of comfuse.
    from comfuse.frontend.symbolic import outline

    if region.symbolic is None:
        return True  # it holds for the sizes alone that it was traced with
    now = [like(x, x.shape) if isinstance(x, torch.Tensor) and x.dim() else x for x in inputs]
    with TRACING:
        try:
            captured = capture(fn, now)
        except TraceError:
            return False
        expected = region.symbolic.at(region.rows(inputs).sizes)
    results = [views.shape_of(node) for node in captured.outputs]
    return outline(captured) == outline(expected) and region.call(inputs).result_shapes() == results


def _traced(fn: Callable[..., Any], inputs: Sequence[Any]) -> TracedRegion:
    captured = capture(fn, inputs)
    for others in _with_more_rows(captured, inputs):
        region = _general(fn, others)
        if region is not None and region.accepts(inputs) and holds_for(fn, region, inputs):
            return region
    return _of_rows(fn, captured, inputs)


def _general(fn: Callable[..., Any], others: list[Any]) -> TracedRegion | None:
    """The region traced with other inputs, if it is for any number of rows."""
    try:
        region = _of_rows(fn, capture(fn, others), others)
    except TraceError:
        return None
    return None if region.symbolic is None else region


def _of_rows(fn: Callable[..., Any], captured: Captured, inputs: Sequence[Any]) -> TracedRegion:
    """The region, for as many numbers of rows as it holds for."""
    from comfuse.frontend.symbolic import trace_symbolic

    region = _region(captured, inputs)
    if region.lowered.reads_rows:
        return region
    symbolic = trace_symbolic(fn, inputs, region.lowered)
    if symbolic is None or not _agrees(symbolic, region.lowered, captured):
        return region
    return replace(region, symbolic=symbolic)


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


def _agrees(symbolic: Symbolic, lowered: Lowered, captured: Captured) -> bool:
    """Whether the function means the same for other rows, a few more and many more, of those it is for."""
    if (symbolic.captured.scalars, symbolic.captured.structure) != (captured.scalars, captured.structure):
        return False
    others = [rows for more in _MORE if (rows := _other_rows(symbolic, lowered, more)) is not None][:2]
    try:
        return bool(others) and all(lower(symbolic.at(rows.sizes)) == lowered.at(rows) for rows in others)
    except TraceError:
        return False


# Many more and a few more, and what there is where the function asks for less.
_MORE = (1000, 3, 1, -1, -2)


def _other_rows(symbolic: Symbolic, lowered: Lowered, more: int) -> Rows | None:
    """More rows, or fewer, that the trace is for, if there are."""
    widths = {link.spec.n for link in lowered.links}
    sizes = [d + symbolic.step * (2 * i + more) for i, d in enumerate(lowered.rows.sizes)]
    while sizes and widths & {*sizes, Rows(tuple(sizes)).count}:
        sizes = [size + symbolic.step for size in sizes]
    rows = Rows(tuple(sizes))
    return rows if min(sizes, default=2) > 1 and symbolic.holds(sizes) else None


# --- inputs with a single row, or none --------------------------------------------------------------------


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
                others[i] = like(x, tuple(shape))
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
