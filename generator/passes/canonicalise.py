"""Cleans a program: dead nodes, constants, common subexpressions, cheaper forms of the same value.

Every rule keeps the float64 meaning up to the rounding of the last place, and up to the sign of a zero.
A quotient that is rounded to an integer is not rounded before that in any other way.
``pow`` with a constant exponent means what it means in torch: ``pow(x, 0.5)`` is ``sqrt(x)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from comfuse.generator.ops import AXES, ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.graph import Graph, moved, with_outputs
from comfuse.generator.spec import FusedSpec, Node, Space

# A rule sees a node whose inputs are already rewritten and gives the node that replaces it, or None.
Rule = Callable[[Graph, Node], int | None]


def canonicalise(spec: FusedSpec) -> FusedSpec:
    """The fixpoint of the rules below."""
    while True:
        better = _rewrite(spec)
        if better == spec:
            return spec
        spec = better


def _rewrite(spec: FusedSpec) -> FusedSpec:
    graph = Graph(spec)
    place: list[int] = []
    stepped = {i for node in spec.nodes if node.op in _STEPS for i in node.inputs}
    for index, node in enumerate(spec.nodes):
        place.append(_replace(graph, moved(node, place), index in stepped))
    return graph.spec(with_outputs(spec, place))


def _replace(graph: Graph, node: Node, is_stepped: bool) -> int:
    rules = QUOTIENT_OF_A_STEP if is_stepped and node.op == "div" else RULES.get(node.op, ())
    for rule in (_fold, *rules):
        replacement = rule(graph, node)
        if replacement is not None and graph.stands_for(replacement, node):
            return replacement
    return graph.add(node)


def _fold(graph: Graph, node: Node) -> int | None:
    """An elementwise op of constants is a constant."""
    if node.op not in ELEMENTWISE:
        return None
    values = [graph.constant(i) for i in node.inputs]
    if any(v is None for v in values):
        return None
    return graph.const(float(ELEMENTWISE[node.op].evaluate(*values)), node.name)


def _has(graph: Graph, node: Node, value: float) -> int | None:
    """The other input, if one input of a binary op is this constant."""
    a, b = node.inputs
    if graph.constant(b) == value:
        return a
    return b if graph.constant(a) == value else None


# --- add, sub, neg ---


def _add_zero(graph: Graph, node: Node) -> int | None:
    return _has(graph, node, 0.0)


def _add_neg(graph: Graph, node: Node) -> int | None:
    """``a + -b`` is ``a - b``."""
    a, b = node.inputs
    if graph.is_op(b, "neg"):
        return graph.op(node.name, "sub", a, graph.nodes[b].inputs[0])
    if graph.is_op(a, "neg"):
        return graph.op(node.name, "sub", b, graph.nodes[a].inputs[0])
    return None


def _sub_zero(graph: Graph, node: Node) -> int | None:
    return node.inputs[0] if graph.constant(node.inputs[1]) == 0.0 else None


def _sub_neg(graph: Graph, node: Node) -> int | None:
    """``a - -b`` is ``a + b``."""
    a, b = node.inputs
    return graph.op(node.name, "add", a, graph.nodes[b].inputs[0]) if graph.is_op(b, "neg") else None


def _twice(graph: Graph, node: Node) -> int | None:
    """``- -x`` is ``x``."""
    inner = graph.nodes[node.inputs[0]]
    return inner.inputs[0] if inner.op == node.op else None


# --- mul, div, powers ---

_ONE_TOLERANCE = 4 * 2.0**-52  # n * (1 / n) in float64


def _mul_one(graph: Graph, node: Node) -> int | None:
    for i, other in (node.inputs, node.inputs[::-1]):
        value = graph.constant(i)
        if value is not None and abs(value - 1.0) <= _ONE_TOLERANCE:
            return other
    return None


def _mul_self(graph: Graph, node: Node) -> int | None:
    a, b = node.inputs
    return graph.op(node.name, "square", a) if a == b else None


def _mul_constants(graph: Graph, node: Node) -> int | None:
    """``(x * c) * d`` is ``x * (c d)``, if that is a normal float32."""
    for i, other in (node.inputs, node.inputs[::-1]):
        outer = graph.constant(i)
        if outer is None or not graph.is_op(other, "mul"):
            continue
        for j, x in (graph.nodes[other].inputs, graph.nodes[other].inputs[::-1]):
            inner = graph.constant(j)
            if inner is not None and _is_normal(outer * inner):
                return graph.op(node.name, "mul", x, graph.const(outer * inner, f"{node.name}_factor"))
    return None


def _div_one(graph: Graph, node: Node) -> int | None:
    return node.inputs[0] if graph.constant(node.inputs[1]) == 1.0 else None


def _one_div(graph: Graph, node: Node) -> int | None:
    if graph.constant(node.inputs[0]) != 1.0:
        return None
    return graph.op(node.name, "reciprocal", node.inputs[1])


# They jump at the integers: of 41 / 41 they have to see 1, which 41 times the rounded 1 / 41 is not.
_STEPS = ("ceil", "floor", "trunc")


def _div_constant(graph: Graph, node: Node) -> int | None:
    """A product is ten times cheaper than a quotient."""
    a, b = node.inputs
    value = graph.constant(b)
    if value is None or value == 0.0 or not _is_normal(value) or not _is_normal(1.0 / value):
        return None
    return graph.op(node.name, "mul", a, graph.const(1.0 / value, f"{node.name}_factor"))


def _div_power_of_two(graph: Graph, node: Node) -> int | None:
    """The one quotient whose product has no other rounding."""
    value = graph.constant(node.inputs[1])
    return _div_constant(graph, node) if value is not None and abs(math.frexp(value)[0]) == 0.5 else None


def _div_sqrt(graph: Graph, node: Node) -> int | None:
    a, b = node.inputs
    if not graph.is_op(b, "sqrt"):
        return None
    root = graph.op(f"{graph.nodes[b].name}_inverse", "rsqrt", graph.nodes[b].inputs[0])
    return graph.op(node.name, "mul", a, root)


def _div_per_row(graph: Graph, node: Node) -> int | None:
    """A quotient by a value of the row or group: one reciprocal for it, one product an element."""
    a, b = node.inputs
    if graph.spaces[a] is not Space.TILE or graph.spaces[b] in (Space.TILE, Space.ROW):
        return None
    inverse = graph.op(f"{graph.nodes[b].name}_inverse", "reciprocal", b)
    return graph.op(node.name, "mul", a, inverse)


def _reciprocal_sqrt(graph: Graph, node: Node) -> int | None:
    inner = graph.nodes[node.inputs[0]]
    return graph.op(node.name, "rsqrt", inner.inputs[0]) if inner.op == "sqrt" else None


def _sqrt_reciprocal(graph: Graph, node: Node) -> int | None:
    """``sqrt(1 / x)``; only -0 would tell them apart."""
    inner = graph.nodes[node.inputs[0]]
    return graph.op(node.name, "rsqrt", inner.inputs[0]) if inner.op == "reciprocal" else None


_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def _pow_constant(graph: Graph, node: Node) -> int | None:
    base, exponent = node.inputs
    value = graph.constant(exponent)
    if value == 1.0:
        return base
    if value == 3.0:
        return graph.op(node.name, "mul", base, graph.op(f"{node.name}_square", "square", base))
    if value == 4.0:
        return graph.op(node.name, "square", graph.op(f"{node.name}_square", "square", base))
    if value in _POWERS:
        return graph.op(node.name, _POWERS[value], base)
    return None


# --- signs ---


def _even(graph: Graph, node: Node) -> int | None:
    """``abs(-x)``, ``abs(abs(x))``, ``square(-x)`` and ``square(abs(x))`` without the inner sign."""
    inner = graph.nodes[node.inputs[0]]
    return graph.op(node.name, node.op, inner.inputs[0]) if inner.op in ("neg", "abs") else None


# --- minimum, maximum ---


def _maximum_zero(graph: Graph, node: Node) -> int | None:
    x = _has(graph, node, 0.0)
    return None if x is None else graph.op(node.name, "relu", x)


def _unbounded(graph: Graph, node: Node) -> int | None:
    """``maximum(x, -inf)`` and ``minimum(x, inf)`` are ``x``."""
    return _has(graph, node, -math.inf if node.op == "maximum" else math.inf)


def _same(graph: Graph, node: Node) -> int | None:
    """``maximum(x, x)`` is ``x``."""
    a, b = node.inputs
    return a if a == b else None


# --- truth ---

_ANSWERS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite")  # 1 or 0
_LOGICAL = ("logical_and", "logical_or", "logical_xor", "logical_not")


def _isnan(graph: Graph, node: Node) -> int | None:
    """``x != x``."""
    a, b = node.inputs
    return graph.op(node.name, "isnan", a) if a == b else None


def _isinf(graph: Graph, node: Node) -> int | None:
    """``abs(x) == inf``."""
    x = _has(graph, node, math.inf)
    if x is None or not graph.is_op(x, "abs"):
        return None
    return graph.op(node.name, "isinf", graph.nodes[x].inputs[0])


def _ne_zero(graph: Graph, node: Node) -> int | None:
    """``x != 0``, where ``x`` is 1 or 0 already."""
    x = _has(graph, node, 0.0)
    return x if x is not None and graph.nodes[x].op in _ANSWERS + _LOGICAL else None


def _eq_zero(graph: Graph, node: Node) -> int | None:
    x = _has(graph, node, 0.0)
    return None if x is None else graph.op(node.name, "logical_not", x)


def _where(graph: Graph, node: Node) -> int | None:
    condition, a, b = node.inputs
    value = graph.constant(condition)
    if value is not None:
        return a if value != 0.0 else b
    return a if a == b else None


def _where_truth(graph: Graph, node: Node) -> int | None:
    """The choice asks whether its condition is zero, so that the condition need not."""
    condition, a, b = node.inputs
    inner = graph.nodes[condition]
    if inner.op == "logical_not":
        return graph.op(node.name, "where", inner.inputs[0], b, a)
    x = _has(graph, inner, 0.0) if inner.op == "ne" else None
    return None if x is None else graph.op(node.name, "where", x, a, b)


# --- reductions ---


def _sum_of_squares(graph: Graph, node: Node) -> int | None:
    """``row_sum(square(x))`` is ``row_sumsq(x)``."""
    inner = graph.nodes[node.inputs[0]]
    if inner.op != "square":
        return None
    return graph.op(node.name, f"{REDUCTIONS[node.op].axis}_sumsq", inner.inputs[0])


def _is_normal(value: float) -> bool:
    return math.isfinite(value) and 2.0**-126 <= abs(value) < 2.0**127


RULES: dict[str, tuple[Rule, ...]] = {
    "add": (_add_zero, _add_neg),
    "sub": (_sub_zero, _sub_neg),
    "neg": (_twice,),
    "abs": (_even,),
    "square": (_even,),
    "mul": (_mul_one, _mul_self, _mul_constants),
    "div": (_div_one, _one_div, _div_constant, _div_sqrt, _div_per_row),
    "reciprocal": (_reciprocal_sqrt,),
    "sqrt": (_sqrt_reciprocal,),
    "pow": (_pow_constant,),
    "maximum": (_maximum_zero, _unbounded, _same),
    "minimum": (_unbounded, _same),
    "eq": (_isinf, _eq_zero),
    "ne": (_isnan, _ne_zero),
    "where": (_where, _where_truth),
    **{f"{axis}_sum": (_sum_of_squares,) for axis in AXES},
}
QUOTIENT_OF_A_STEP: tuple[Rule, ...] = (_div_one, _div_power_of_two)
