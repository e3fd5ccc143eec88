"""What a reduction runs over: the columns of each row, groups of them, all rows, or everything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from comfuse.frontend import axes
from comfuse.frontend.axes import Atom, Axis, Layout
from comfuse.frontend.placing import Frame, Term, Value
from comfuse.frontend.views import name_of, refuse
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.spec import Space

if TYPE_CHECKING:
    from comfuse.frontend.lowering import Lowering

_IDENTITIES = {"sum": 0.0, "sumsq": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


@dataclass(frozen=True)
class Over:
    """A reduction of a node of the graph.

    Attributes:
        x: what is reduced.
        axis: ``row``, ``group``, ``col`` or ``full``.
        columns: how many values of a row one result covers.
        period: of how many neighbouring columns the value is the same: all N of one number a row.
        over_rows: whether it also covers all rows.
        kept: the layout of the result, the reduced dimensions of size 1.
        dropped: the layout without them.
    """

    low: Lowering
    node: torch.fx.Node
    x: Value
    frame: Frame
    axis: str
    columns: int
    period: int
    over_rows: bool
    kept: Layout
    dropped: Layout

    def reduce(self, monoid: str, x: Value | None = None, name: str | None = None) -> Value:
        """``x``, by default the node's input, reduced by a monoid; read its fields if it has several."""
        x = self.x if x is None else x
        if self.axis == "none":
            return self._of_one(monoid, x)
        if f"{self.axis}_{monoid}" not in REDUCTIONS:
            allowed = [r.axis for r in REDUCTIONS.values() if r.monoid.name == monoid]
            raise refuse(
                self.node, f"{monoid} over {_NAMES[self.axis]} is not available; {monoid} runs over "
                f"{' and '.join(_NAMES[a] for a in allowed)}",
            )  # fmt: skip
        if x.space is not Space.TILE or self.period != 1:
            return self._reduce_again(monoid, x, name)
        return self.low.reduce(self.axis, monoid, x, name=name)

    def _of_one(self, monoid: str, x: Value) -> Value:
        """A reduction over dimensions of size 1."""
        if monoid == "sumsq":
            return self.low.emit("square", x)
        if monoid not in _IDENTITIES:
            raise refuse(self.node, f"{monoid} of one value a result: leave it out")
        return x

    def over_rows_only(self) -> Over:
        """The reduction over all rows of what this one gives for each."""
        one = ((),) * len(self.kept)
        return replace(self, axis="full", columns=1, period=self.low.n, over_rows=True, kept=one, dropped=())

    def _reduce_again(self, monoid: str, x: Value, name: str | None) -> Value:
        """A value that is the same for several columns counts at the first of them."""
        if x.space is Space.ROW and self.axis in ("row", "full"):
            axis, inner, source = self.low.reduced.get(x.node, ("", "", x))
            if (axis, inner) == ("col", monoid):  # a sum of sums
                return self.low.reduce("full", monoid, source, name=name)
        if monoid not in _IDENTITIES or x.space in (Space.ROW, Space.SCALAR):
            raise refuse(
                self.node,
                f"{monoid} over {_NAMES[self.axis]} of a {x.space.value} value, which itself was reduced or "
                "does not vary over them, is not available: reduce over all dimensions at once",
            )
        place = self.low.index("column_index")
        if self.period == 1:  # it repeats in every column, and counts in each
            counts = self.low.emit("ge", place, self.low.const(0.0))
        else:
            counts = self.low.emit("eq", place, self._first(place))
        spread = self.low.emit("where", counts, x, self.low.const(_IDENTITIES[monoid]))
        return self.low.reduce(self.axis, monoid, spread, name=name)

    def _first(self, place: Value) -> Value:
        """The first column of the same value."""
        if self.period == self.low.n:
            return self.low.const(0.0)
        number = self.low.quotient(place, self.period)
        return self.low.emit("mul", number, self.low.const(self.period))

    def count(self) -> Value:
        """How many values one result covers."""
        columns = self.low.const(self.columns)
        if not self.over_rows:
            return columns
        rows = self.low.index("row_count")
        return rows if self.columns == 1 else self.low.emit("mul", rows, columns)

    def mean(self, total: Value) -> Value:
        if self.over_rows:
            return self.low.emit("div", total, self.count())
        return self.low.emit("mul", total, self.low.const(1.0 / self.columns))

    def term(self, value: Value, shape: Sequence[int]) -> Term:
        """The result as a tensor of ``shape``."""
        for layout in (self.frame.layout, self.kept, self.dropped):
            if axes.shape_of(layout) == tuple(shape):
                return Term((value,), layout)
        raise AssertionError(f"{self.node}: {shape} is neither {self.kept} nor {self.dropped}")


def over(low: Lowering, node: torch.fx.Node, source: Any, dims: Any) -> Over:
    """What ``node`` reduces, over ``dims`` of ``source`` (None: all of them)."""
    return over_term(low, node, low.term(source, node), dims, name_of(source))


def over_term(low: Lowering, node: torch.fx.Node, term: Term, dims: Any, name: str) -> Over:
    """The same of a value that is no node of the graph."""
    rank = len(term.layout)
    whole = axes.fill(
        term.layout, range(rank), low.extents(term.is_wide)
    )  # repeats count as columns, or rows
    term = term if whole is None else replace(term, layout=whole)
    reduced = set(range(rank)) if dims in (None, []) else {d % max(rank, 1) for d in _listed(dims)}
    gone = [dim for d, dim in enumerate(term.layout) if d in reduced]
    if term.is_wide:
        raise refuse(node, "it reduces over both of two products side by side; reduce each of them")
    atoms = [atom for dim in gone for atom in dim]
    axis = _axis(low, term, atoms) if atoms else "none"
    if axis is None:
        raise refuse(node, _mixed(low, term, sorted(reduced), name))
    if axis == "group":
        _use_group(low, node, axes.size_of(atoms))
    period = _period(low, term)
    if period is None:
        raise refuse(node, _mixed(low, term, sorted(reduced), name))
    columns = math.prod(atom.size for atom in axes.atoms_along(gone, Axis.COLUMNS))
    over_rows = axis in ("col", "full")
    if over_rows and low.products.batch > 1:
        raise refuse(node, "it reduces over the rows of a batched product, whose batches run apart")
    return Over(
        low=low,
        node=node,
        x=term.values[0],
        frame=Frame.of(term.layout),
        axis=axis,
        columns=columns,
        period=period,
        over_rows=over_rows,
        kept=tuple(() if d in reduced else dim for d, dim in enumerate(term.layout)),
        dropped=tuple(dim for d, dim in enumerate(term.layout) if d not in reduced),
    )


_NAMES = {
    "row": "the columns of a row",
    "group": "groups of columns",
    "col": "the rows",
    "full": "rows and columns",
}


def _listed(dims: Any) -> Iterable[int]:
    return [dims] if isinstance(dims, int) else dims


def _axis(low: Lowering, term: Term, gone: list[Atom]) -> str | None:
    """The axis that atoms of a value make up, or None."""
    if any(atom.axis is None for atom in gone):
        return None
    rows = axes.atoms_along([tuple(gone)], Axis.ROWS)
    columns = axes.atoms_along([tuple(gone)], Axis.COLUMNS)
    varies = axes.joined(axes.atoms_along(term.layout, Axis.COLUMNS))
    all_columns = axes.joined(columns) == varies  # all over which the value varies
    if rows and not axes.is_whole(rows, low.products.count):
        return None
    if rows and not columns:
        return "col" if varies else "full"
    if all_columns:
        return "full" if rows else "row"
    inner = axes.joined(columns)
    is_group = len(inner) == 1 and inner[0].stride == 1
    return "group" if is_group and not rows else None


def _period(low: Lowering, term: Term) -> int | None:
    """Of how many neighbouring columns a value is the same; None if it is not so regular."""
    columns = axes.joined(axes.atoms_along(term.layout, Axis.COLUMNS))
    if not columns:
        return low.n
    (outermost, *more) = columns
    regular = not more and outermost.stride * outermost.size == low.n
    return outermost.stride if regular else None


def _mixed(low: Lowering, term: Term, dims: list[int], name: str) -> str:
    meaning = []
    for d in dims:
        along = {atom.axis for atom in term.layout[d]}
        what = [_PARTS[axis] for axis in (Axis.ROWS, Axis.COLUMNS, None) if axis in along]
        meaning.append(f"{d} ({' and '.join(what) or 'of size 1'})")
    return (
        f"it reduces dimensions {', '.join(meaning)} of {name}, of shape {axes.shape_of(term.layout)}; "
        f"reductions run over all {low.n} columns of a row, over neighbouring columns in groups, over all "
        f"{low.products.count} rows, or over everything"
    )


_PARTS = {Axis.ROWS: "a part of the rows", Axis.COLUMNS: "columns", None: "repeats of one value"}


def _use_group(low: Lowering, node: torch.fx.Node, size: int) -> None:
    if low.builder.group not in (None, size):
        raise refuse(
            node,
            f"it reduces groups of {size} columns, and the program already has groups of "
            f"{low.builder.group}; a kernel has one size of groups",
        )
    low.builder.group = size
