"""A part of a graph around GEMMs, while its borders are looked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch.fx import Node

from comfuse.inductor.candidate import Candidate
from comfuse.inductor.nodes import holds_tensor, is_item

Order = Mapping[Node, int]


@dataclass(frozen=True)
class Part:
    """Nodes of a graph.  No way out of them leads back in.

    Attributes:
        anchors: the GEMMs.
        order: the place of each node in its graph.
        below: all that depends on the anchors, a settled region being one node.
        behind: the GEMMs, and nodes that depend on them.
        ahead: nodes that do not, and that nobody else reads.
        stopped: the first node behind each border, and why it is none of the part.
    """

    anchors: tuple[Node, ...]
    order: Order = field(repr=False)
    below: frozenset[Node] = field(repr=False)
    behind: frozenset[Node]
    ahead: frozenset[Node] = frozenset()
    stopped: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, anchor: Node, order: Order) -> Part:
        """A GEMM alone."""
        return cls((anchor,), order, frozenset(), frozenset((anchor,)))

    @property
    def nodes(self) -> frozenset[Node]:
        return self.behind | self.ahead

    def sorted(self, nodes: Iterable[Node]) -> list[Node]:
        """Nodes in the order of the graph."""
        return sorted(nodes, key=self.order.__getitem__)

    def without(self, nodes: Iterable[Node], reason: str = "") -> Part:
        """The part less ``nodes``, what depends on them behind the GEMMs, and what nobody in it reads then.

        ``reason``: why it ends there, for people; nothing where it is its own decision.
        """
        first = [whole(node) for node in nodes]
        gone, pending = set(first), [node for node in first if node in self.behind]
        while pending:
            found = {user for user in pending.pop().users if user in self.behind} - gone
            gone |= found
            pending += found
        behind = self.behind - gone
        stopped = self.stopped + tuple((node.name, reason) for node in first if reason)
        return replace(self, behind=behind, ahead=self._read_by(behind, self.ahead - gone), stopped=stopped)

    def _read_by(self, behind: frozenset[Node], ahead: frozenset[Node]) -> frozenset[Node]:
        """What nobody but ``behind`` reads, in the end."""
        kept: set[Node] = set()
        for node in reversed(self.sorted(ahead)):
            if all(user in behind or user in kept for user in node.users):
                kept.add(node)
        return frozenset(kept)

    def candidate(self) -> Candidate:
        inside = self.nodes
        nodes = self.sorted(inside)
        read = dict.fromkeys(i for node in nodes for i in node.all_input_nodes if i not in inside)
        return Candidate(
            anchors=self.anchors,
            nodes=tuple(nodes),
            inputs=tuple(read),
            outputs=tuple(node for node in nodes if holds_tensor(node) and self.is_read_outside(node)),
            stopped=self.stopped,
        )

    def is_read_outside(self, node: Node) -> bool:
        return any(user not in self.behind and user not in self.ahead for user in node.users)


def whole(node: Node) -> Node:
    """The operator of which a node is a result."""
    if is_item(node):
        operator = node.args[0]
        assert isinstance(operator, Node)
        return operator
    return node
