"""Equal views of one value made one node, so that equal factors of GEMMs are the same node."""

from __future__ import annotations

from torch.fx import Graph, Node

from comfuse.frontend.views import is_view
from comfuse.inductor.nodes import is_anchor, readers, source, written


def merge_views(graph: Graph) -> None:
    """Gives the GEMMs that read equal views the first of them, and removes the others.

    Views that anything else reads stay, as a result of the graph may have to be a copy of its own; and those
    of what the graph writes to, as a copy before that is another than one after it.
    """
    changed = written(graph)
    first: dict[tuple[object, str], Node] = {}
    for node in [*graph.nodes]:
        if not is_view(node) or source(node) in changed:
            continue
        # Names of nodes are unique in a graph.
        same = first.setdefault((node.target, f"{node.args} {node.kwargs}"), node)
        if same is not node and all(map(is_anchor, readers(node))):
            node.replace_all_uses_with(same)
            graph.erase_node(node)
