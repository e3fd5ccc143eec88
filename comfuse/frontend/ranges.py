"""Between which numbers integers lie: a kernel computes them in float32, which has all of them up to 2^24.

Beyond, and where the integers of torch would wrap around, a kernel gives something else, so that arithmetic
is taken only where its inputs and its result are known to stay inside.  What only chooses among numbers (an
extreme, a clamp, ``where``) keeps their order whatever they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from comfuse.frontend import views
from comfuse.frontend.handlers import FILLS, POSITIONS, REDUCTIONS
from comfuse.frontend.views import arguments, dtype_of, name_of, refuse, shape_of
from comfuse.reference import LARGEST_EXACT

aten = torch.ops.aten

Range = tuple[float, float]  # lowest and highest, both of them integers, or infinite

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_QUOTIENTS = 2.0**20  # float32's quotient of larger numbers, off by a few ulp, may cross an integer
_COMPARISONS = {aten.eq, aten.ge, aten.gt, aten.le, aten.lt, aten.ne}
_DIVISIONS = {aten.div, aten.floor_divide}
_INDICES = {aten.argmax, aten.argmin}


class Ranges:
    """The ranges of the values of a graph; ``constant`` reads a tensor of one number that it holds."""

    def __init__(self, constant: Callable[[Node, Node], float]) -> None:
        self._constant = constant
        self._known: dict[Node, Range] = {}

    def check(self, node: Node) -> None:
        """Refuses an operator on integers whose result may not be torch's.

        Raises:
            TraceError: they, or its result, may lie where float32 or their dtype ends.
        """
        packet = _packet(node)
        if packet in _COMPARISONS:
            self._check_comparison(node)
        elif packet in _INDICES or (packet in (aten.max, aten.min) and isinstance(node.meta["val"], tuple)):
            if _is_integer(node.args[0]):
                self._check_range(node, self.of(node.args[0]), LARGEST_EXACT, name_of(node.args[0]))  # type: ignore[arg-type]
        elif packet in _ARITHMETIC and _is_integer(node):
            limit = _QUOTIENTS if packet in _DIVISIONS else LARGEST_EXACT
            for x in node.all_input_nodes:
                self._check_range(node, self.of(x), limit, name_of(x))
            self._check_range(node, self.of(node), LARGEST_EXACT, "its result")

    def check_sum(self, node: Node, monoid: str, columns: int | None) -> None:
        """The same of a sum or product; ``columns``: of how many values, None if that depends on the rows."""
        if not _is_integer(node.args[0]):  # bools are counted
            return
        lowest, highest = self.of(node.args[0])
        most = max(abs(lowest), abs(highest))
        if monoid == "prod":
            total = most if most <= 1 else math.inf
        else:
            total = most * (columns if columns is not None else math.inf if most else 0)
        self._check_range(node, (-total if lowest < 0 else 0.0, total), LARGEST_EXACT, "its result")

    def check_cast(self, node: Node, source: Node) -> None:
        """Refuses a conversion between integers that may wrap around."""
        if not (_is_integer(node) and _is_integer(source)):
            return
        (lowest, highest), (least, most) = self.of(source), _of_dtype(dtype_of(node))
        if lowest < least or highest > most:
            raise refuse(
                node,
                f"{name_of(source)}, {_between(lowest, highest)}, may not fit {dtype_of(node)}, where torch"
                " wraps around and a kernel does not: clamp it, or convert it before the call",
            )

    def of(self, x: Any) -> Range:
        """The range of a node of the graph or of a number; of floats, what is known."""
        if not isinstance(x, Node):
            return (x, x) if isinstance(x, bool | int | float) else (-math.inf, math.inf)
        if x not in self._known:
            whole = _of_dtype(dtype_of(x)) if _is_tensor(x) else (-math.inf, math.inf)
            self._known[x] = whole if whole == (0.0, 1.0) else self._find(x, whole)
        return self._known[x]

    # --- one node ---------------------------------------------------------------------------------------

    def _check_comparison(self, node: Node) -> None:
        sides = [*arguments(node).values()][:2]
        if not all(_is_integer(x) or _is_bool(x) or isinstance(x, int) for x in sides):
            return  # torch makes floats of them too
        ranges = [self.of(x) for x in sides]
        # Rounding to float32 keeps the order, and moves nothing across an integer below 2^24.
        if any(low > -LARGEST_EXACT and high < LARGEST_EXACT for low, high in ranges):
            return
        for x, found in zip(sides, ranges, strict=True):
            self._check_range(node, found, LARGEST_EXACT, name_of(x) if isinstance(x, Node) else str(x))

    def _check_range(self, node: Node, found: Range, limit: float, what: str) -> None:
        lowest, highest = found
        least, most = _of_dtype(dtype_of(node)) if _is_integer(node) else (-limit, limit)
        least, most = max(least, -limit), min(most, limit)
        if not (lowest >= least and highest <= most):  # nor where they are NaN
            raise refuse(
                node,
                f"it works on integers, which a kernel does in float32 and only {_between(least, most)}, and"
                f" {what} may lie {_between(lowest, highest)}: convert to float, clamp, or compute it before"
                " the call",
            )

    def _find(self, node: Node, whole: Range) -> Range:
        if node.op == "get_attr":
            value = self._constant(node, node)
            return (value, value)
        if node.op != "call_function":
            return whole
        if node.target in FILLS:
            value = FILLS[node.target](node)
            return (value, value)
        if node.target in POSITIONS:
            return _positions(node)
        if views.is_view(node) or views.is_split(node):
            return self.of(node.args[0])
        if node.target is operator.getitem:
            return self._item(node, whole)
        if node.target in views.CASTS:
            lowest, highest = self.of(node.args[0])
            return (max(_whole(lowest), whole[0]), min(_whole(highest), whole[1]))
        if node.target in REDUCTIONS:
            return self._reduced(node, whole)
        rule = _CHOICES.get(_packet(node)) or (_ARITHMETIC.get(_packet(node)) if _is_integer(node) else None)
        return whole if rule is None else rule(self, arguments(node))

    def _reduced(self, node: Node, whole: Range) -> Range:
        packet, source = _packet(node), node.args[0]
        if not isinstance(source, Node) or not isinstance(node.meta["val"], torch.Tensor):
            return whole
        count = _elements(source) // max(_elements(node), 1)
        if packet in (aten.amax, aten.amin, aten.max, aten.min, aten.gather):
            return self.of(source)
        if packet in _INDICES:
            return (0, count - 1)
        if packet is aten.count_nonzero:
            return (0, count)
        lowest, highest = self.of(source)
        return (lowest * count, highest * count) if packet is aten.sum and math.isfinite(lowest) else whole

    def _item(self, node: Node, whole: Range) -> Range:
        """Of the extreme of a row and its index, or of both extremes."""
        source, number = node.args
        if _packet(source) not in (aten.aminmax, aten.max, aten.min):  # type: ignore[arg-type]
            return whole
        origin = source.args[0]  # type: ignore[union-attr]
        if number == 0 or _packet(source) is aten.aminmax:  # type: ignore[arg-type]
            return self.of(origin)
        return (0, _elements(origin) - 1)  # type: ignore[arg-type]


def _packet(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Node) and isinstance(x.meta.get("val"), torch.Tensor)


def _is_integer(x: Any) -> bool:
    return _is_tensor(x) and dtype_of(x) in INTEGERS


def _is_bool(x: Any) -> bool:
    return _is_tensor(x) and dtype_of(x) is torch.bool


def _elements(node: Node) -> int:
    """How many there are; of symbolic sizes as many as when it was traced."""
    return math.prod(size if isinstance(size, int) else size.node.hint for size in shape_of(node))


def _of_dtype(dtype: torch.dtype) -> Range:
    if dtype is torch.bool:
        return (0.0, 1.0)
    if dtype not in INTEGERS:
        return (-math.inf, math.inf)
    return (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _whole(x: float) -> float:
    return math.trunc(x) if math.isfinite(x) else x


def _between(lowest: float, highest: float) -> str:
    return f"from {_number(lowest)} to {_number(highest)}"


def _number(x: float) -> str:
    power = math.frexp(abs(x))[1] if math.isfinite(x) else 0
    for exponent, less in ((power - 1, 0), (power, 1), (power - 1, 1)):
        if exponent >= 15 and abs(x) == 2**exponent - less:
            return f"{'-' if x < 0 else ''}2^{exponent}{' - 1' if less else ''}"
    return f"{x:g}" if abs(x) < 1e6 else f"{x:.0f}" if math.isfinite(x) else str(x)


def _positions(node: Node) -> Range:
    if _packet(node) is aten.eye:
        return (0, 1)
    given = arguments(node)
    start, step = given.get("start", 0), given.get("step", 1)
    ends = (start, start + step * max(_elements(node) - 1, 0))
    return (min(ends), max(ends))


# --- operators ------------------------------------------------------------------------------------------

Rule = Callable[[Ranges, dict[str, Any]], Range]


def _hull(*names: str) -> Rule:
    def rule(ranges: Ranges, given: dict[str, Any]) -> Range:
        lowest, highest = zip(*(ranges.of(given[name]) for name in names), strict=True)
        return (min(lowest), max(highest))

    return rule


def _clamp(ranges: Ranges, given: dict[str, Any]) -> Range:
    low, high = given.get("min", given.get("min_val")), given.get("max", given.get("max_val"))
    lowest, highest = ranges.of(given["self"])
    if low is not None:
        lowest, highest = (max(a, b) for a, b in zip((lowest, highest), ranges.of(low), strict=True))
    if high is not None:
        lowest, highest = (min(a, b) for a, b in zip((lowest, highest), ranges.of(high), strict=True))
    return (lowest, highest)


def _extreme(choose: Callable[[float, float], float]) -> Rule:
    def rule(ranges: Ranges, given: dict[str, Any]) -> Range:
        (a, b), (c, d) = ranges.of(given["self"]), ranges.of(given["other"])
        return (choose(a, c), choose(b, d))

    return rule


def _rounded(ranges: Ranges, given: dict[str, Any]) -> Range:
    lowest, highest = ranges.of(given["self"])
    return (
        math.floor(lowest) if math.isfinite(lowest) else lowest,
        math.ceil(highest) if math.isfinite(highest) else highest,
    )


def _relu(ranges: Ranges, given: dict[str, Any]) -> Range:
    lowest, highest = ranges.of(given["self"])
    return (max(lowest, 0), max(highest, 0))


_CHOICES: dict[Any, Rule] = {
    aten.ceil: _rounded,
    aten.clamp: _clamp,
    aten.clamp_max: _clamp,
    aten.clamp_min: _clamp,
    aten.copy: _hull("src"),
    aten.floor: _rounded,
    aten.fmax: _extreme(max),
    aten.fmin: _extreme(min),
    aten.hardtanh: _clamp,
    aten.masked_fill: _hull("self", "value"),
    aten.maximum: _extreme(max),
    aten.minimum: _extreme(min),
    aten.relu: _relu,
    aten.round: _rounded,
    aten.sign: lambda ranges, given: (-1, 1),
    aten.trunc: _rounded,
    aten.where: _hull("self", "other"),
}


def _sum(a: Range, b: Range) -> Range:
    return (a[0] + b[0], a[1] + b[1])


def _product(*factors: Range) -> Range:
    lowest, highest = factors[0]
    for a, b in factors[1:]:
        corners = [x * y for x in (lowest, highest) for y in (a, b)]
        lowest, highest = min(corners), max(corners)
    return (lowest, highest)


def _scaled_sum(first: str, second: str, sign: int = 1) -> Rule:
    """``first + sign * alpha * second``."""

    def rule(ranges: Ranges, given: dict[str, Any]) -> Range:
        factor = _product(ranges.of(given["alpha"]), (sign, sign))
        return _sum(ranges.of(given[first]), _product(factor, ranges.of(given[second])))

    return rule


def _most(ranges: Ranges, given: dict[str, Any]) -> Range:
    """No quotient or remainder of truncation is further from zero than what is divided."""
    most = max(abs(x) for x in ranges.of(given["self"]))
    return (-most, most)


def _remainder(ranges: Ranges, given: dict[str, Any]) -> Range:
    lowest, highest = ranges.of(given["other"])
    return (min(lowest + 1, 0), max(highest - 1, 0))


def _power(ranges: Ranges, given: dict[str, Any]) -> Range:
    """The exponents that are products."""
    exponent = given.get("exponent", 2)
    if exponent not in (1, 2, 3, 4):
        return (-math.inf, math.inf)
    return _product(*[ranges.of(given["self"])] * exponent)


def _absolute(ranges: Ranges, given: dict[str, Any]) -> Range:
    lowest, highest = ranges.of(given["self"])
    return (max(lowest, -highest, 0), max(-lowest, highest))


_ARITHMETIC: dict[Any, Rule] = {
    aten.abs: _absolute,
    aten.add: _scaled_sum("self", "other"),
    aten.addcmul: lambda ranges, given: _sum(
        ranges.of(given["self"]), _product(*(ranges.of(given[x]) for x in ("value", "tensor1", "tensor2")))
    ),
    aten.div: _most,
    aten.floor_divide: _most,
    aten.fmod: _most,
    aten.mul: lambda ranges, given: _product(ranges.of(given["self"]), ranges.of(given["other"])),
    aten.neg: lambda ranges, given: _product(ranges.of(given["self"]), (-1, -1)),
    aten.pow: _power,
    aten.remainder: _remainder,
    aten.rsub: _scaled_sum("other", "self", -1),
    aten.square: _power,
    aten.sub: _scaled_sum("self", "other", -1),
}
