"""Nodes added to a graph of TorchInductor, with the values that tracing them gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from comfuse.frontend.views import refuse

aten = torch.ops.aten

Size = int | torch.SymInt
_KEPT = ("stack_trace", "nn_module_stack")  # what says where in the user's program a node comes from


class Emitter:
    """Adds nodes behind ``last``, which stand for the same lines of the user's program as ``origin``."""

    def __init__(self, graph: Graph, last: Node, origin: Node) -> None:
        self._graph = graph
        self._place = last.next
        self._meta = {key: origin.meta[key] for key in _KEPT if key in origin.meta}
        self._added: list[Node] = []
        self._sizes = _sizes(graph)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        with torch.no_grad():
            val = target(*torch.fx.map_arg(args, lambda node: node.meta["val"]), **kwargs)
        with self._graph.inserting_before(self._place):
            node = self._graph.call_function(target, args, kwargs)
        node.meta = {**self._meta, "val": val}
        self._added.append(node)
        return node

    def undo(self) -> None:
        for node in reversed(self._added):
            self._graph.erase_node(node)

    def sizes(self, sizes: Sequence[Size], of: Node) -> list[int | Node]:
        """Sizes as arguments.  Raises TraceError at ``of`` where the graph has no node for one."""
        return [self._size(size, of) for size in sizes]

    def _size(self, size: Size, of: Node) -> int | Node:
        if isinstance(size, int):
            return size
        if size.node.expr.is_Integer:
            return int(size.node.expr)
        found = self._sizes.get(size.node.expr)
        if found is None:
            raise refuse(of, f"its graph has no node for the size {size}")
        return found

    def reshaped(self, node: Node, shape: Sequence[Size]) -> Node:
        """``node`` in another shape of as many elements."""
        val = node.meta["val"]
        if statically_known_true(sym_eq(tuple(val.shape), tuple(shape))):
            return node
        if not statically_known_true(sym_eq(val.numel(), product(shape))):
            raise refuse(node, f"not for all sizes does its shape {tuple(val.shape)} fit {tuple(shape)}")
        return self.call(aten.reshape.default, node, self.sizes(shape, node))


def sort(graph: Graph) -> None:
    """Puts each node behind what it reads."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    stable_topological_sort(graph)


def product(sizes: Sequence[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def _sizes(graph: Graph) -> dict[sympy.Expr, Node]:
    """The first node for each symbolic size, of those that depend on no tensor of the graph."""
    nodes: set[Node] = set()
    first: dict[sympy.Expr, Node] = {}
    for node in graph.nodes:
        size = node.meta.get("val")
        if isinstance(size, torch.SymInt) and nodes.issuperset(node.all_input_nodes):
            nodes.add(node)
            first.setdefault(size.node.expr, node)
    return first
