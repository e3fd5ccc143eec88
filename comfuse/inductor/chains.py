"""GEMMs back to back: parts whose result nothing but the next GEMM multiplies, joined to one.

Joining takes the only way out of the first part, so that no way out of the whole leads back in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch.fx import Node

from comfuse.frontend.errors import TraceError
from comfuse.frontend.views import is_view
from comfuse.inductor import choose
from comfuse.inductor.candidate import Candidate
from comfuse.inductor.lowerer import lowered
from comfuse.inductor.nodes import bytes_of, factors, source, tensor
from comfuse.inductor.part import Order
from comfuse.inductor.policy import Policy
from comfuse.ops.resolver import turned_off


@dataclass(frozen=True)
class Pair:
    """Two parts, either of which may be a chain, the second with a GEMM whose left factor the first gives.

    Attributes:
        middle: that factor, before views of it.
    """

    first: Candidate
    second: Candidate
    middle: Node

    @property
    def parts(self) -> tuple[Candidate, ...]:
        """Of both, those that are no chains."""
        return (*_links(self.first), *_links(self.second))

    @property
    def saved(self) -> int:
        """The bytes that are neither stored nor loaded where the middle stays on the chip."""
        return 2 * bytes_of(self.middle)

    def joined(self, order: Order) -> Candidate:
        """Both parts, and the views between them, as one."""
        inside = {*self.first.nodes, *self.second.nodes, *self._between()}
        nodes = sorted(inside, key=order.__getitem__)
        return Candidate(
            anchors=(*self.first.anchors, *self.second.anchors),
            nodes=tuple(nodes),
            inputs=tuple(dict.fromkeys(i for node in nodes for i in node.all_input_nodes if i not in inside)),
            outputs=self.second.outputs,
            stopped=self.second.stopped,
            links=self.parts,
        )

    def _readers(self) -> tuple[Node, ...]:
        """The GEMMs that read the middle."""
        return _links(self.second)[0].anchors

    def _between(self) -> Iterator[Node]:
        for anchor in self._readers():
            node = factors(anchor)[0]
            while node is not self.middle:
                yield node
                node = node.args[0]  # type: ignore[assignment]

    def stored(self) -> str:
        """What of the first part has to be in memory, and why; or nothing."""
        for node in self.first.outputs:
            own = self.first.nodes if node is not self.middle else ()
            for user, read in _users(node):
                if user not in own and not self._multiplies(user, read):
                    return _stored(node, user)
        return ""

    def refused(self, order: Order, policy: Policy) -> str:
        """Why no kernel runs both, or none that pays; or nothing."""
        try:
            found = lowered(self.joined(order))
        except TraceError as e:
            return e.reason
        off = turned_off(found.lowered.spec)
        if off:
            return off
        try:
            verdict = choose.verdict(found, policy)
        except Exception:  # a bug, which shows again where it costs no more than this region
            return ""
        return "" if verdict.fused else verdict.reason

    def _multiplies(self, user: Node, read: Node) -> bool:
        """Whether a node is a GEMM behind the middle, and what it reads no more than its left factor."""
        is_left = user in self._readers() and factors(user)[0] is read
        return is_left and sum(x is read for x in user.args) == 1


def join(parts: Sequence[Candidate], order: Order, policy: Policy) -> tuple[list[Candidate], dict[str, str]]:
    """The chains among parts that do not overlap, those that save most first; none holds a part twice.

    One that does not become a kernel is none, so that it keeps its parts from no other.  A chain takes on
    what comes ahead of it or behind it where all of that is a kernel that pays; so does one that alone does
    not pay.

    Returns:
        The chains; and for GEMMs that are in none, by name, why not.
    """
    found: list[Candidate] = []
    short: list[Candidate] = []  # what alone is no kernel that pays
    reasons: dict[str, str] = {}
    for pair in _pairs(parts):
        holders = _holders(found, pair)
        tried, reason = pair, pair.stored()
        if not reason and holders:
            longer = _longer(pair, holders)
            tried = pair if longer is None else longer
            refused = "" if longer is None else longer.refused(order, policy)
            if longer is None or refused:
                one = " and ".join(f"{_names(c.anchors)} are one" for c in holders)
                reason = f"{one}; {refused}" if refused else one
        elif not reason:
            reason = pair.refused(order, policy)
            if reason:
                neighbours = [_longer(pair, [chain]) for chain in _holders(short, pair)]
                free = [p for p in neighbours if p is not None and not _holders(found, p)]
                paying = next((p for p in free if not p.refused(order, policy)), None)
                short.append(pair.joined(order))
                tried, reason = (pair, reason) if paying is None else (paying, "")
        if reason:
            reasons |= apart((tried.first, tried.second), reason)
        else:
            found = [c for c in found if c not in holders] + [tried.joined(order)]
    inside = {anchor.name for chain in found for anchor in chain.anchors}
    return found, {name: reason for name, reason in reasons.items() if name not in inside}


def apart(parts: Sequence[Candidate], reason: str) -> dict[str, str]:
    """What is said of the GEMMs of parts that are no chain, by name."""
    return {
        anchor.name: f"no chain with {_names(a for p in parts if p is not part for a in p.anchors)}: {reason}"
        for part in parts
        for anchor in part.anchors
    }


def _holders(chains: Iterable[Candidate], pair: Pair) -> list[Candidate]:
    """The chains that hold a part of it."""
    return [chain for chain in chains if any(part in chain.links for part in pair.parts)]


def _longer(pair: Pair, holders: Iterable[Candidate]) -> Pair | None:
    """A pair with the chains that hold its parts in their place; None if one goes on elsewhere."""
    first, second = pair.first, pair.second
    for chain in holders:
        if chain.links[-1] == first:
            first = chain
        elif chain.links[0] == second:
            second = chain
        else:
            return None
    return Pair(first, second, pair.middle)


def _links(part: Candidate) -> tuple[Candidate, ...]:
    return part.links or (part,)


def _pairs(candidates: Sequence[Candidate]) -> list[Pair]:
    of_node = {node: candidate for candidate in candidates for node in candidate.nodes}
    found = []
    for second in candidates:
        for left in dict.fromkeys(factors(anchor)[0] for anchor in second.anchors):
            middle = source(left)
            first = of_node.get(middle)
            # A transposed one is summed over the rows.
            if first not in (None, second) and _columns(left) == _columns(middle):
                found.append(Pair(first, second, middle))
    return sorted(found, key=lambda pair: pair.saved, reverse=True)


def _users(node: Node) -> Iterator[tuple[Node, Node]]:
    """What reads a value, with itself or the view of it that is read."""
    for user in node.users:
        if is_view(user):
            yield from _users(user)
        else:
            yield user, node


def _stored(node: Node, user: Node) -> str:
    if user.op == "output":
        return f"{node} has to be stored: it is a result of the graph, as what a backward pass needs is"
    return f"{node} has to be stored: {user} reads it too"


def _columns(node: Node) -> str:
    return str(tensor(node).shape[-1])  # a comparison of symbols would add a guard


def _names(anchors: Iterable[Node]) -> str:
    return " and ".join(anchor.name for anchor in anchors)
