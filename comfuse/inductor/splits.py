"""The parts of a split as views of their own: packed projections, for gates or for q, k and v.

A split gives several results at once, and a region may need only some of them.  TorchInductor reads a part
in the same way, whichever operator gives it.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from comfuse.frontend.views import Window, arguments, is_split, view_of

aten = torch.ops.aten


def unpack_splits(graph: Graph) -> None:
    """Replaces the splits of ``graph`` along dimensions of known size by slices and selections."""
    for node in [*graph.nodes]:
        if not is_split(node) or not _is_known(node):
            continue
        for part in [*node.users]:
            with graph.inserting_before(part):
                view = _view(graph, part)
            view.meta = dict(part.meta)
            part.replace_all_uses_with(view)
            graph.erase_node(part)
        graph.erase_node(node)


def _is_known(split: Node) -> bool:
    """Whether sizes and places of all parts are numbers."""
    whole, dim = arguments(split)["self"], arguments(split)["dim"]
    sizes = [whole.meta["val"].shape[dim]]
    if split.target is not aten.unbind.int:
        sizes += [part.shape[dim] for part in split.meta["val"]]
    return all(isinstance(size, int) for size in sizes)


def _view(graph: Graph, part: Node) -> Node:
    found = view_of(part)
    assert found is not None
    source, view = found
    if isinstance(view, Window):
        return graph.call_function(aten.slice.Tensor, (source, view.dim, view.start, view.start + view.count))
    return graph.call_function(aten.select.int, (source, view.dim, view.index))  # type: ignore[union-attr]
