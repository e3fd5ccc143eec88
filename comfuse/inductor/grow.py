"""What depends on a GEMM and can be computed right behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from comfuse.frontend.handlers import explain_unknown
from comfuse.inductor.nodes import elements, is_anchor, is_known, source, written
from comfuse.inductor.part import Order, Part

RETURNED = "its result is returned"  # of the node before the end of a graph


@dataclass
class Field:
    """A graph, and which of its nodes are given away.

    Attributes:
        order: the place of each node.
        written: what operators of the graph write to.
        taken: the nodes of each region that is settled, by each of its nodes.
    """

    order: Order
    written: set[Node]
    taken: dict[Node, frozenset[Node]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> Field:
        return cls({node: i for i, node in enumerate(graph.nodes)}, written(graph))

    def take(self, nodes: Iterable[Node]) -> None:
        """Settles a region: to all others it is one node from now on."""
        region = frozenset(nodes)
        self.taken |= dict.fromkeys(region, region)

    def give_back(self, nodes: Iterable[Node]) -> None:
        """Opens a settled region again."""
        for node in nodes:
            del self.taken[node]

    def reads_written(self, node: Node) -> bool:
        """Whether a node reads or is what an operator of the graph writes to: its place is fixed."""
        return any(source(x) in self.written for x in (node, *node.all_input_nodes))

    def below(self, nodes: Iterable[Node]) -> set[Node]:
        """What depends on nodes, a settled region being one node."""
        start = set(nodes)
        found: set[Node] = set()
        pending = list(start)
        while pending:
            for user in pending.pop().users:
                fresh = self.taken.get(user, frozenset((user,))) - found - start
                found |= fresh
                pending += fresh
        return found


def grow(graph: Field, anchors: tuple[Node, ...]) -> Part:
    """The anchors, and all behind them that the front end may know.

    Of what depends on the anchors, a node is taken if everything that it reads from there is: so no way out
    of the part leads back in.
    """
    below = graph.below(anchors)
    largest = sum(elements(anchor) for anchor in anchors)
    inside = set(anchors)
    outside = {node for node in below if node in graph.taken}
    stopped: dict[str, str] = {}
    for node in sorted(below - outside, key=graph.order.__getitem__):
        if any(i in outside for i in node.all_input_nodes):
            outside.add(node)
            continue
        reason = _refusal(graph, node, largest)
        if reason is None:
            inside.add(node)
        else:
            outside.add(node)
            stopped[node.name] = reason
    for node in sorted(below, key=graph.order.__getitem__):
        if node in graph.taken and any(i in inside for i in node.all_input_nodes):
            stopped[node.name] = "it is fused with another matrix product"
    stops = tuple(stopped.items())
    return Part(anchors, graph.order, frozenset(below), frozenset(inside), stopped=stops)


def _refusal(graph: Field, node: Node, largest: int) -> str | None:
    """Why a node cannot stand behind a GEMM of so many elements; None if it may."""
    if node.op != "call_function":
        return RETURNED if node.op == "output" else "it is no operator"
    if is_anchor(node):
        return "another matrix product"
    if not is_known(node):
        return explain_unknown(node)
    if graph.reads_written(node):
        return "it reads what the graph changes in place"
    if elements(node) > largest:
        return "it is larger than the result of the GEMM"
    return None
