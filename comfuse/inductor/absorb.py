"""What a part reads and could compute itself, from fewer bytes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch.fx import Node

from comfuse.frontend.handlers import ELEMENTWISE, POSITIONS
from comfuse.frontend.views import is_view
from comfuse.inductor.grow import Field
from comfuse.inductor.nodes import (
    bytes_of,
    elements,
    factors,
    holds_tensor,
    is_cast,
    is_inductors,
    is_pointwise,
    readers,
    source,
)
from comfuse.inductor.part import Part


def absorb(graph: Field, part: Part) -> Part:
    """The part with the elementwise nodes ahead of it that nobody else reads.

    None of them depends on it, as what it reads does not: so no way out leads back in.
    """
    kept = {source(factor) for anchor in part.anchors for factor in factors(anchor)}
    kept |= {factor for anchor in part.anchors for factor in factors(anchor)}
    largest = sum(elements(anchor) for anchor in part.anchors)
    ahead: set[Node] = set()
    pending = list(part.behind)
    while pending:
        for node in pending.pop().all_input_nodes:
            if node in part.behind or node in ahead or node in kept:
                continue
            is_ours = all(user in part.behind or user in ahead for user in node.users)
            if is_ours and elements(node) <= largest and _is_computable(graph, node):
                ahead.add(node)
                pending.append(node)
    return replace(part, ahead=_paying(part, ahead))


def _is_computable(graph: Field, node: Node) -> bool:
    if node.op != "call_function" or node in graph.taken or graph.reads_written(node):
        return False
    known = node.target in ELEMENTWISE or node.target in POSITIONS or is_cast(node) or is_view(node)
    return known and holds_tensor(node)


def _paying(part: Part, ahead: set[Node]) -> frozenset[Node]:
    """Less those at the far end that read more bytes, which nobody else needs stored, than they make.

    The random numbers behind a dropout mask are four bytes an element, and the mask is one.
    """
    for node in part.sorted(ahead):
        if any(i in ahead for i in node.all_input_nodes):
            continue
        read = [i for i in node.all_input_nodes if not _is_stored(i, part, ahead)]
        if sum(map(bytes_of, read)) > bytes_of(node):
            ahead.discard(node)
    return frozenset(ahead)


def _is_stored(node: Node, part: Part, ahead: Collection[Node]) -> bool:
    """Whether a node is in memory anyway, whatever becomes of the part."""
    node = source(node)
    if not is_pointwise(node):
        return True
    others = (user for user in readers(node) if user not in part.behind and user not in ahead)
    return not all(map(is_inductors, others))
