"""From the nodes of a graph to values of a spec: what the handlers of single operators work with.

Every node that depends on the GEMM is a :class:`~.placing.Term`: a value, and how the graph's tensor walks
over the tile space.  What depends on arguments alone is *deferred*: a bias has no place until a value that
has one meets it, and then torch's broadcasting rules say where it goes.

Values are computed in float32; casts between float types inside the graph change nothing, and rounding
happens where an output is stored.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from comfuse.frontend import axes, views
from comfuse.frontend.axes import Axis, Layout
from comfuse.frontend.capture import Captured
from comfuse.frontend.emitter import Emitter
from comfuse.frontend.gemm import Products, SideBySide
from comfuse.frontend.handlers import (
    ELEMENTWISE,
    FILLS,
    POSITIONS,
    REDUCTIONS,
    explain_unknown,
)
from comfuse.frontend.operands import Operands
from comfuse.frontend.placing import Frame, Joined, Result, Term, Value, frame_layout, half_of, halved
from comfuse.frontend.ranges import INTEGERS, Ranges
from comfuse.frontend.views import Picked, dtype_of, name_of, refuse, shape_of
from comfuse.generator.spec import Space

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_COMPUTED = (torch.bfloat16, torch.float16, torch.float32, torch.bool, *INTEGERS)


class UseSideBySide(Exception):
    """Half of the columns are computed with: the product is two side by side."""

    def __init__(self, split: SideBySide) -> None:
        super().__init__()
        self.split = split


class Lowering(Emitter):
    """Finds the value of each node.

    Attributes:
        split: how the columns of a product of the graph are those of two, or None.
        ranges: between which numbers its integers lie.
        env: what each node that depends on the GEMM is.
        logarithms: of each log-softmax its input, and what is subtracted from it.
    """

    def __init__(self, captured: Captured, split: SideBySide | None) -> None:
        super().__init__(Products(captured.arguments, split))
        self.split = split
        self.operands = Operands(self, captured)
        self.ranges = Ranges(self.operands.constant)
        self.env: dict[torch.fx.Node, Result] = {}
        self.logarithms: dict[int, tuple[Value, tuple[Value, ...]]] = {}
        self._placed: dict[tuple[torch.fx.Node, Frame], Value] = {}

    def extents(self, wide: bool) -> dict[Axis, int]:
        return self.products.wide_extents if wide else self.products.extents

    # --- values that depend on the GEMM -------------------------------------------------------------

    def term(self, x: Any, user: torch.fx.Node) -> Term:
        """An input of ``user`` that must depend on the GEMM, to compute with."""
        found = self.env.get(x)
        if found is None:
            raise refuse(user, f"it works on {name_of(x)}, which does not depend on the GEMM: do it before")
        if isinstance(found, Joined):
            raise refuse(
                user, f"it works on {name_of(x)}, where values lie side by side: do it to each of them"
            )
        assert isinstance(found, Term)
        self.check_rounding(x, user)
        if found.part == {Axis.COLUMNS} and self.split is None:
            split = self._split_of(found)
            if split is not None:
                raise UseSideBySide(split)
        if found.part:
            what = " and ".join(sorted(axis.value for axis in found.part))
            raise refuse(
                user, f"its input {name_of(x)} is a part of the {what} of the GEMM's result; {_PART_HINT}"
            )
        return found

    def check_rounding(self, x: torch.fx.Node, user: torch.fx.Node) -> None:
        """Refuses to compute with what was rounded to fp8: unlike that to bf16, its rounding is meant."""
        if dtype_of(x) in FP8:
            raise refuse(
                user,
                f"its input {name_of(x)} was rounded to {dtype_of(x)}, which happens at a store alone: "
                "return it as it is, or leave the conversion out",
            )

    def _split_of(self, term: Term) -> SideBySide | None:
        if self.n % 2 or self.n < 4:
            return None
        columns = [tuple(a for a in dim if a.axis is Axis.COLUMNS) for dim in term.layout]
        for split, first in ((SideBySide(False), self.n // 2), (SideBySide(True), 1)):
            layout = halved(tuple(columns), split.interleaved, self.n // 2)
            if layout is None or term.column not in (0, first):
                continue
            if axes.is_whole(axes.atoms_along(layout, Axis.COLUMNS), self.n // 2):
                return split
        return None

    def moved(self, node: torch.fx.Node, source: torch.fx.Node, view: views.View) -> Term:
        """A view of a value."""
        term = self.env[source]
        if isinstance(term, Joined):
            raise refuse(
                node, f"it rearranges {name_of(source)}, where values lie side by side: do it after the call"
            )
        assert isinstance(term, Term)
        layout = views.moved(term.layout, view, shape_of(node))
        if layout is None:
            raise refuse(node, f"it takes a part of {name_of(source)} across its rows and columns")
        start = views.origin(term.layout, view)
        if start is None:
            return Term(term.values, layout, term.row, term.column, term.part)
        axis, first = start
        if axis is Axis.COLUMNS and term.is_wide:
            return self._one_of_two(node, term, layout, first)
        return Term(
            term.values,
            layout,
            term.row + (first if axis is Axis.ROWS else 0),
            term.column + (first if axis is Axis.COLUMNS else 0),
            term.part | {axis},
        )

    def _one_of_two(self, node: torch.fx.Node, term: Term, layout: Layout, first: int) -> Term:
        assert self.split is not None
        own = halved(layout, self.split.interleaved, self.n)
        second = 1 if self.split.interleaved else self.n
        if own is None or first not in (0, second):
            raise refuse(
                node, "it takes another part of the columns than one of the two products side by side"
            )
        value = term.values[0 if first == 0 else 1]
        return Term((value,), own, term.row, 0, term.part)

    def frames(self, node: torch.fx.Node) -> list[Frame]:
        """What the inputs of ``node`` broadcast to; two, one a product, where they run over both."""
        terms = [self.term(i, node) for i in node.all_input_nodes if i in self.env]
        wide = any(t.is_wide for t in terms)
        varying = [shape_of(i) for i in node.all_input_nodes if i not in self.env and i.target not in FILLS]
        layout = frame_layout(shape_of(node), terms, varying, self.extents(wide))
        if isinstance(layout, str):
            raise refuse(node, layout)
        return self.frames_of(node, layout) if wide else [Frame.of(layout)]

    def frames_of(self, node: torch.fx.Node, layout: Layout) -> list[Frame]:
        """The frames of a layout over the columns of all products."""
        if self.split is None:
            return [Frame.of(layout)]
        frames = []
        for half in (0, 1):
            dims = half_of(views.picked(layout), half, self.split.interleaved, self.n)
            if dims is None:
                raise refuse(node, "its shape mixes the columns of two products side by side")
            frames.append(Frame.of(layout, dims, half))
        return frames

    # --- what a handler asks for --------------------------------------------------------------------

    def value(self, x: Any, frame: Frame, user: torch.fx.Node) -> Value:
        """An argument of ``user``, a node or a Python number, in its place in ``frame``."""
        if isinstance(x, bool | int | float):
            return self.const(x)
        if not isinstance(x, torch.fx.Node):
            raise refuse(user, f"its argument {x!r} is not a number known when the function is traced")
        if x not in self.env:
            return self._place(x, frame, user)
        term = self.term(x, user)
        layout = axes.aligned_layout(term.layout, len(frame.layout))
        if any(dim and axes.merged([dim, own]) != own for dim, own in zip(layout, frame.layout, strict=True)):
            raise refuse(
                user,
                f"its input {name_of(x)} of shape {shape_of(x)} does not line up with the rows and columns "
                f"of the GEMM's result when it is broadcast to {axes.shape_of(frame.layout)}",
            )
        return term.values[frame.half or 0] if term.is_wide else term.values[0]

    def cast(self, node: torch.fx.Node, value: Value, source: torch.fx.Node) -> Value:
        """``value``, that of ``source``, converted to the dtype of ``node``, as far as that changes it."""
        self.ranges.check_cast(node, source)
        dtype, before = dtype_of(node), dtype_of(source)
        if dtype is torch.bool and before is not torch.bool:
            return self.emit("ne", value, self.const(0.0))
        if dtype in INTEGERS and before not in (torch.bool, *INTEGERS):
            return self.emit("trunc", value)
        if dtype not in FP8:
            check_dtype(node)
        return value

    def elementwise(self, node: torch.fx.Node, frame: Frame) -> Value:
        check_dtype(node)
        value = ELEMENTWISE[node.target](self, node, frame)
        self.ranges.check(node)  # what it reads first, as the cause may lie there
        return value

    def reduction(self, node: torch.fx.Node) -> Result:
        self.ranges.check(node)
        return REDUCTIONS[node.target](self, node)

    # --- values that depend on arguments alone ------------------------------------------------------

    def _place(self, node: torch.fx.Node, frame: Frame, user: torch.fx.Node) -> Value:
        """``node`` where its dimensions broadcast to those of ``frame``."""
        shape = shape_of(node)
        if len(shape) > len(frame.dims):
            raise refuse(
                user, f"its input {name_of(node)} of shape {shape} has more dimensions than its result"
            )
        own = frame.dims[len(frame.dims) - len(shape) :]
        dims = tuple(
            dim if size == dim.size else Picked(size, ()) for size, dim in zip(shape, own, strict=True)
        )
        frame = frame.narrowed(dims)
        key = (node, frame)
        if key not in self._placed:
            self._placed[key] = self._place_new(node, frame, user)
        return self._placed[key]

    def _place_new(self, node: torch.fx.Node, frame: Frame, user: torch.fx.Node) -> Value:
        if node.op == "placeholder":
            return self.operands.load(node, frame, user)
        if node.op == "get_attr":
            return self.const(self.operands.constant(node, user))
        if node.target in FILLS:
            return self.const(FILLS[node.target](node))
        if node.target in POSITIONS:
            return POSITIONS[node.target](self, node, frame)
        found = views.view_of(node)
        if found is not None:
            source, view = found
            dims = views.undone(frame.dims, view, shape_of(source))
            if dims is None:
                raise refuse(
                    user, f"its input {name_of(node)} is rearranged in a way that no strides describe"
                )
            return self._place(source, frame.narrowed(dims), user)
        if node.target in views.CASTS:
            source = node.args[0]  # type: ignore[assignment]
            return self.cast(node, self._place(source, frame, user), source)
        if node.target in REDUCTIONS:
            return self._place_reduction(node, frame, user, 0)
        if node.target is operator.getitem:
            return self._place_reduction(node.args[0], frame, user, node.args[1])  # type: ignore[arg-type]
        if node.target not in ELEMENTWISE:
            raise refuse(node, explain_unknown(node))
        return self.elementwise(node, frame)

    def _place_reduction(self, node: torch.fx.Node, frame: Frame, user: torch.fx.Node, result: int) -> Value:
        """A reduction of arguments alone, over the columns of a row: the kernel reads them anyway."""
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        layout = self._reduced_layout(node, shape_of(source), frame)
        if layout is None or frame.half is not None or not all(dim.is_whole for dim in frame.dims):
            raise refuse(
                node,
                f"it reduces arguments alone, over other dimensions than the GEMM's N = {self.n}: {_BEFORE}",
            )
        inner = Frame.of(layout)
        self.env[source] = Term((self._place(source, inner, user),), layout)
        try:
            found = self.reduction(node)
        finally:
            del self.env[source]
        term = found[result] if isinstance(found, tuple) else found
        assert not isinstance(term, Joined)
        if term is None or term.space is Space.ROW:
            raise refuse(node, f"it reduces arguments alone over the rows: {_BEFORE}")
        fits = (
            axes.merged([dim, own]) == own for dim, own in zip(term.layout, frame.layout, strict=True) if dim
        )
        if not all(fits):
            raise refuse(
                node, f"it works on arguments alone, in another order than the GEMM's result: {_BEFORE}"
            )
        return term.values[0]

    def _reduced_layout(self, node: torch.fx.Node, shape: axes.Shape, frame: Frame) -> Layout | None:
        """The layout of a reduction's input, by that of its result."""
        given = views.arguments(node)
        reduced = given.get("dim")
        listed = [reduced] if isinstance(reduced, int) else [*(reduced or range(len(shape)))]
        dims = {d % max(len(shape), 1) for d in listed}
        kept = [*frame.layout]
        if len(kept) == len(shape):
            layout = tuple(() if d in dims else kept[d] for d in range(len(shape)))
        else:
            layout = tuple(() if d in dims else kept.pop(0) for d in range(len(shape)))
        known = tuple(dim or axes.repeated(size) for dim, size in zip(layout, shape, strict=True))
        return axes.fill(known, range(len(known)), self.products.extents)


_BEFORE = "compute it before the call"
_PART_HINT = (
    "a kernel computes on all rows, and on all columns or two halves of them, side by side or every other one"
)


def check_dtype(node: torch.fx.Node) -> None:
    dtype = dtype_of(node)
    if dtype not in _COMPUTED:
        raise refuse(node, f"it is computed in {dtype}; between load and store everything is float32")
