"""The parts of a split as views of their own: packed projections, for gates or for q, k and v.

A split gives several results at once, and a region may need only some of them.  TorchInductor reads a part
in the same way, whichever operator gives it; ``glu``, a split and a gate, it writes out as here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from comfuse.frontend.views import Window, arguments, is_split, view_of

aten = torch.ops.aten

_KEPT = ("stack_trace", "nn_module_stack")  # what says where in the user's program a node comes from


def unpack_splits(graph: Graph) -> None:
    """Replaces the splits of ``graph`` along dimensions of known size by slices and selections."""
    for node in [*graph.nodes]:
        if is_split(node) and _is_known(node):
            for part in [*node.users]:
                with graph.inserting_before(part):
                    _replace(part, _part(graph, part))
            graph.erase_node(node)
        elif node.target is aten.glu.default and _is_known(node):
            with graph.inserting_before(node):
                _replace(node, _glu(graph, node))


def _is_known(node: Node) -> bool:
    """Whether sizes and places of all parts are numbers."""
    given = arguments(node)
    sizes = [given["self"].meta["val"].shape[given["dim"]]]
    if is_split(node) and node.target is not aten.unbind.int:
        sizes += [part.shape[given["dim"]] for part in node.meta["val"]]
    return all(isinstance(size, int) for size in sizes)


def _part(graph: Graph, part: Node) -> Node:
    """One result of a split."""
    found = view_of(part)
    assert found is not None
    source, view = found
    if isinstance(view, Window):
        return _call(graph, part, aten.slice.Tensor, source, view.dim, view.start, view.start + view.count)
    return _call(graph, part, aten.select.int, source, view.dim, view.index)  # type: ignore[union-attr]


def _glu(graph: Graph, node: Node) -> Node:
    """The first half of a tensor times the sigmoid of the second."""
    source, dim = arguments(node)["self"], arguments(node)["dim"]
    half = source.meta["val"].shape[dim] // 2
    first, second = (
        _call(graph, node, aten.slice.Tensor, source, dim, start, start + half) for start in (0, half)
    )
    return _call(graph, node, aten.mul.Tensor, first, _call(graph, node, aten.sigmoid.default, second))


def _call(graph: Graph, origin: Node, target: Any, *args: Any) -> Node:
    """A new node in the place of ``origin``."""
    with torch.no_grad():
        val = target(*torch.fx.map_arg(args, lambda node: node.meta["val"]))
    node = graph.call_function(target, args)
    node.meta = {key: origin.meta[key] for key in _KEPT if key in origin.meta} | {"val": val}
    return node


def _replace(old: Node, new: Node) -> None:
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
