"""The reductions: a monoid, and the axis of the tile space that it runs over.

What a reduction reads always has the shape (M, N).  Over no rows at all (M = 0) a ``col`` or ``full``
reduction gives the monoid's neutral element, and ``welford`` NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from comfuse.generator.ops import ieee
from comfuse.generator.spec import Space

Axis = Literal["row", "group", "col", "full"]

# What each axis leaves: one value a row, a row and group of columns, a column, or one in all.
AXES: dict[Axis, Space] = {
    "row": Space.COLUMN,
    "group": Space.GROUP,
    "col": Space.ROW,
    "full": Space.SCALAR,
}


@dataclass(frozen=True)
class Monoid:
    """What a reduction merges values by.

    ``evaluate`` maps values, in order, to the tuple of ``fields``.  A monoid with the one field ``value``
    is read directly; the result of any other is read through ``"field"`` nodes only.
    """

    name: str
    functor: str  # the C++ type
    evaluate: Callable[[Sequence[float]], tuple[float, ...]]
    cost: float  # issue slots an element
    fields: dict[str, str] = field(
        default_factory=lambda: {"value": "value"}, hash=False
    )  # field -> C++ name
    state_floats: int = 1  # what a partial result occupies
    axes: tuple[Axis, ...] = ("row", "group", "col", "full")


@dataclass(frozen=True)
class Reduction:
    """A monoid over an axis.  ``space`` is that of the result."""

    axis: Axis
    monoid: Monoid

    @property
    def name(self) -> str:
        return f"{self.axis}_{self.monoid.name}"

    @property
    def space(self) -> Space:
        return AXES[self.axis]

    @property
    def evaluate(self) -> Callable[[Sequence[float]], tuple[float, ...]]:
        return self.monoid.evaluate

    @property
    def cost(self) -> float:
        return self.monoid.cost

    @property
    def fields(self) -> dict[str, str]:
        return self.monoid.fields

    @property
    def state_floats(self) -> int:
        return self.monoid.state_floats

    @property
    def is_plain(self) -> bool:
        """True if the result is one value, read without a ``"field"`` node."""
        return "value" in self.fields


def _product(values: Sequence[float]) -> tuple[float]:
    result = 1.0
    for x in values:
        result *= x
    return (result,)


def _max(values: Sequence[float]) -> tuple[float]:
    result = -ieee.INF
    for x in values:
        result = ieee.maximum(result, x)
    return (result,)


def _min(values: Sequence[float]) -> tuple[float]:
    result = ieee.INF
    for x in values:
        result = ieee.minimum(result, x)
    return (result,)


def _welford(values: Sequence[float]) -> tuple[float, float]:
    count = float(len(values))
    mean = ieee.div(sum(values), count)
    return mean, ieee.div(sum((x - mean) * (x - mean) for x in values), count)


def _softmax(values: Sequence[float]) -> tuple[float, float, float]:
    (peak,) = _max(values)
    sumexp = sum(ieee.exp(x - peak) for x in values)  # NaN where the peak is infinite, as in torch.softmax
    return peak, sumexp, peak if abs(peak) == ieee.INF else peak + ieee.log(sumexp)


def _argmax(values: Sequence[float], sign: float = 1.0) -> tuple[float]:
    best = 0
    for i, x in enumerate(values):
        if values[best] != values[best]:  # a NaN is the extreme, and the first one stays
            break
        if x != x or sign * x > sign * values[best]:
            best = i
    return (float(best),)


def _argmin(values: Sequence[float]) -> tuple[float]:
    return _argmax(values, -1.0)


_IN_ROWS: tuple[Axis, ...] = ("row", "group")

_MONOIDS = (
    Monoid("sum", "Sum", lambda values: (float(sum(values)),), 1),
    Monoid("prod", "Prod", _product, 1),
    Monoid("max", "Max", _max, 1),  # NaN propagates through both
    Monoid("min", "Min", _min, 1),
    Monoid("sumsq", "SumSq", lambda values: (float(sum(x * x for x in values)),), 1),
    # Mean and biased variance.  On the device: two passes over a tile's part, merged by Chan's formula.
    Monoid("welford", "Welford", _welford, 3, {"mean": "mean", "var": "variance"}, 2),
    # The largest x, sum(exp(x - max)) and log(sum(exp(x))), in one pass by rescaling.  sumexp is NaN where
    # max is infinite; lse is then max, as torch.logsumexp has it.
    Monoid(
        "softmax", "Softmax", _softmax, 6, {"max": "maximum", "sumexp": "sumexp", "lse": "lse"}, 2, _IN_ROWS
    ),
    # The index, as a float, of the first of equals.  The first NaN, if there is one.
    Monoid("argmax", "ArgMax", _argmax, 3, state_floats=2, axes=("row",)),
    Monoid("argmin", "ArgMin", _argmin, 3, state_floats=2, axes=("row",)),
)

MONOIDS: dict[str, Monoid] = {monoid.name: monoid for monoid in _MONOIDS}
REDUCTIONS: dict[str, Reduction] = {
    reduction.name: reduction
    for reduction in (Reduction(axis, monoid) for monoid in _MONOIDS for axis in AXES if axis in monoid.axes)
}
