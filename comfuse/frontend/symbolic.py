"""A function traced once for all numbers of rows, which are symbols.

Of a symbol torch knows that it is 2 or more.  What the function asks beyond that (``x.shape[0] > 100``) is
answered as for the inputs, and kept as a condition: where it holds, the function takes the same path.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from comfuse.frontend import views
from comfuse.frontend.capture import Captured, capture, like
from comfuse.frontend.errors import TraceError
from comfuse.frontend.forms import Rows
from comfuse.frontend.lowered import Lowered
from comfuse.frontend.shapes import SymbolicMode
from comfuse.frontend.source import is_users
from comfuse.frontend.symbols import SYMBOLIC, concrete, divisors, expressions

aten = torch.ops.aten
# Their end says how many numbers there are, not which.
_COUNTS = {aten.arange.default, aten.arange.start, aten.arange.start_step}


@dataclass(frozen=True)
class Symbolic:
    """The trace.

    Attributes:
        captured: a graph whose sizes are polynomials of the symbols, and nothing else is.
        symbols: one for each dimension of the rows.
        conditions: what is true of all numbers of rows, of two or more in each dimension, that it is for.
    """

    captured: Captured
    symbols: tuple[sympy.Symbol, ...]
    conditions: tuple[sympy.Basic, ...]

    @property
    def step(self) -> int:
        """What the conditions divide numbers of rows by."""
        return math.lcm(*divisors(self.conditions))

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether it is for these dimensions of the rows, of 2 or more each."""
        table = self._table(sizes)
        return all(condition.xreplace(table) == sympy.true for condition in self.conditions)

    def at(self, sizes: Sequence[int]) -> Captured:
        """The trace with numbers for its symbols."""
        table = self._table(sizes)
        graph = Graph()
        env: dict[Node, Any] = {}
        for node in self.captured.graph.nodes:
            if node.op == "output":
                continue
            val = node.meta.get("val")
            if isinstance(val, SYMBOLIC):
                env[node] = concrete(val, table)
                continue
            args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = copy = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
            copy.meta = {**node.meta, "val": concrete(val, table)}
        outputs = tuple(env[node] for node in self.captured.outputs)
        graph.output(outputs)
        arguments = {env[node]: position for node, position in self.captured.arguments.items()}
        return replace(self.captured, graph=graph, arguments=arguments, outputs=outputs)

    def _table(self, sizes: Sequence[int]) -> dict[sympy.Symbol, sympy.Integer]:
        return dict(zip(self.symbols, map(sympy.Integer, sizes), strict=True))


def trace_symbolic(fn: Callable[..., Any], inputs: Sequence[Any], lowered: Lowered) -> Symbolic | None:
    """Traces ``fn`` with symbols for the rows of what it was lowered to for ``inputs``.

    Returns:
        None where it needs numbers, or computes with them.
    """
    mode = SymbolicMode()
    sizes = tuple(_symbol(mode.shapes, d, size) for d, size in enumerate(lowered.rows.sizes))
    others = [*inputs]
    for read in lowered.at(Rows(sizes)).reads:
        others[read.position] = like(inputs[read.position], read.shape, mode)
    try:
        with _FlatLinear(), _spelled_out(mode.shapes):
            captured = capture(fn, others, mode)
    except TraceError:  # of what takes no symbol
        return None
    if not all(map(_is_of_any_rows, captured.graph.nodes)):
        return None
    symbols = tuple(size.node.expr for size in sizes)
    return Symbolic(captured, symbols, tuple(guard.expr for guard in mode.shapes.guards))


def _symbol(shapes: ShapeEnv, number: int, size: int) -> Any:
    from torch._dynamo.source import ConstantSource  # which imports much

    source = ConstantSource(f"rows{number}")
    symbol = shapes.create_symbol(size, source, DimDynamic.DYNAMIC, None)
    return shapes.create_symintnode(symbol, hint=size, source=source)


@contextlib.contextmanager
def _spelled_out(shapes: ShapeEnv) -> Iterator[None]:
    """Makes what the user's code writes of a symbol the text of its number, which thereby is a condition."""
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    originals = {kind: kind.__repr__ for kind in kinds}

    def spelled(symbol: Any) -> str:
        is_own = getattr(symbol.node, "shape_env", None) is shapes
        if is_own and is_users(sys._getframe(1).f_code.co_filename):
            return repr(kinds[type(symbol)](symbol))
        return originals[type(symbol)](symbol)

    for kind in kinds:
        kind.__repr__ = spelled  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, original in originals.items():
            kind.__repr__ = original  # type: ignore[method-assign]


class _FlatLinear(TorchFunctionMode):
    """What torch does in ``F.linear`` of three dimensions with a bias, where it takes no symbols."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.nn.functional.linear:
            return func(*args, **(kwargs or {}))
        return _linear(*args, **(kwargs or {}))


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if bias is None or input.dim() != 3 or not input.is_contiguous():
        return torch.nn.functional.linear(input, weight, bias)
    batch, rows, k = input.shape
    b = weight.t()
    return torch.addmm(bias, input.view(batch * rows, k), b).view(batch, rows, weight.shape[0])


# --- what depends on the rows ---------------------------------------------------------------------------


def _is_of_any_rows(node: Node) -> bool:
    """Whether an operator depends on the number of rows by its sizes alone, and these are polynomials of it.

    A few numbers of rows then show what it does for any.
    """
    val = node.meta.get("val")
    if node.op != "call_function" or isinstance(val, SYMBOLIC):
        return True
    sizes = [size for x in pytree.tree_leaves(val) if isinstance(x, torch.Tensor) for size in x.shape]
    for is_size, x in _numbers(node):
        if not is_size:
            return False
        sizes.append(x)
    return all(map(_is_polynomial, expressions(sizes)))


def _is_polynomial(expression: sympy.Expr) -> bool:
    symbols = expression.free_symbols
    return expression.is_Symbol or not symbols or bool(expression.is_polynomial(*symbols))


def _numbers(node: Node) -> Iterator[tuple[bool, Any]]:
    """The symbolic numbers that an operator is called with, and whether each is a size or a place."""
    schema = getattr(node.target, "_schema", None)
    arguments = {} if schema is None else {a.name: a for a in schema.arguments}
    for name, given in [*zip(arguments, node.args, strict=False), *node.kwargs.items()]:
        is_size = "SymInt" in arguments[name].real_type.str() or (node.target in _COUNTS and name == "end")
        for x in pytree.tree_leaves(given):
            if isinstance(x, Node) and isinstance(val := x.meta.get("val"), SYMBOLIC):
                yield is_size, val


# --- one number of rows ---------------------------------------------------------------------------------


def outline(captured: Captured) -> list[Any]:
    """All that a captured function does and of what shapes: equal for two that do the same."""
    numbers: dict[Node, int] = {}
    lines: list[Any] = [captured.scalars, captured.structure]
    for node in captured.graph.nodes:
        if node.op == "output":
            continue
        same = _source_of_no_change(node)
        if same is not None:  # torch leaves it out of some graphs, and not of others
            numbers[node] = numbers[same]
            continue
        numbers[node] = len(lines)
        found = views.view_of(node)
        if found is not None:
            lines.append((numbers[found[0]], found[1], views.shape_of(node)))
            continue
        target: Any = captured.arguments.get(node, node.target)
        if node.op == "get_attr" and (constant := captured.constant(node)) is not None:
            target = constant.tolist()
        given = map_arg((node.args, dict(node.kwargs)), lambda x: ("node", numbers[x]))
        val = pytree.tree_leaves(node.meta.get("val"))
        kinds = [(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x for x in val]
        lines.append((node.op, target, given, kinds))
    return [*lines, [numbers[node] for node in captured.outputs]]


def _source_of_no_change(node: Node) -> Node | None:
    """What a view is the same elements of, in the same shape."""
    found = views.view_of(node)
    if found is None or isinstance(found[1], views.Permute):
        return None
    return found[0] if views.shape_of(node) == views.shape_of(found[0]) else None
