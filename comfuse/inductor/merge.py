"""Equal views of one value made one node, so that equal factors of GEMMs are the same node."""

from __future__ import annotations

from torch.fx import Graph, Node

from comfuse.frontend.views import is_view


def merge_views(graph: Graph) -> None:
    """Gives the users of each view the first that is equal to it, and removes the others.

    TorchInductor computes views where they are read: to it nothing changes.
    """
    first: dict[tuple[object, str], Node] = {}
    for node in [*graph.nodes]:
        if not is_view(node):
            continue
        # Names of nodes are unique in a graph.
        same = first.setdefault((node.target, f"{node.args} {node.kwargs}"), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
