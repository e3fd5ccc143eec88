"""Where a part ends best: by the bytes that cross its border.

The nodes of the widest part are thought of as kernels: those inside are the fused kernel, those outside are
what TorchInductor fuses.  A value that another kernel reads is stored once, and loaded once by each.  What
waits for a reduction over the rows is a further kernel; inside, that one repeats the GEMM.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator

from torch.fx import Node

from comfuse.frontend.views import is_view
from comfuse.inductor.grow import Field
from comfuse.inductor.nodes import (
    bytes_of,
    elements,
    factors,
    holds_tensor,
    is_cast,
    is_inductors,
    over_rows,
    readers,
    source,
    tensor,
)
from comfuse.inductor.part import Part, whole

Kernel = Hashable

# What a GPU multiplies and adds in the time in which it moves a byte.
_OPERATIONS_PER_BYTE = 160


def trim(graph: Field, part: Part, longest: Part | None = None) -> tuple[Part, int]:
    """The part that moves the least bytes, of those that end earlier, the smallest of several.

    Args:
        graph: where it lies.
        part: all that is looked at.
        longest: what it may hold at most; None: all of that.

    Returns:
        It, and how many bytes less are moved than with a kernel for the GEMMs alone.
    """
    traffic = _Traffic(graph, part)
    best = part if longest is None else longest
    least = traffic.of(best)
    for tail in _tails(best):
        if tail in best.behind:
            shorter = best.without([tail])
            moved = traffic.of(shorter)
            if moved <= least:
                best, least = shorter, moved
    return best, traffic.of(_bare(part)) - least


def saved(graph: Field, part: Part) -> int:
    """How many bytes less are moved than with a kernel for the GEMMs alone."""
    traffic = _Traffic(graph, part)
    return traffic.of(_bare(part)) - traffic.of(part)


def _bare(part: Part) -> Part:
    return part.without(part.behind - set(part.anchors))


def strip(part: Part) -> Part:
    """The part without what computes nothing at its end: views, and casts to as many bytes or more."""
    for node in _tails(part):
        is_end = node in part.behind and not any(user in part.behind for user in node.users)
        if is_end and (is_view(node) or (is_cast(node) and bytes_of(node) >= bytes_of(_input(node)))):
            part = part.without([node])
    return part


def _tails(part: Part) -> list[Node]:
    """The nodes behind the anchors, the last first."""
    found = part.sorted(part.behind - set(part.anchors))
    return [node for node in reversed(found) if whole(node) is node]


def _input(node: Node) -> Node:
    (found,) = node.all_input_nodes
    return found


class _Traffic:
    """The bytes that the nodes of a part move, for each place where it might end."""

    def __init__(self, graph: Field, part: Part) -> None:
        self._all = part.nodes
        self._beside = _beside(graph, part)
        self._computed = [n for n in part.sorted(part.nodes) if holds_tensor(n) and not is_view(n)]
        self._readers = {node: [*dict.fromkeys(readers(node))] for node in self._computed}
        every = self._all.union(self._beside, *self._readers.values())
        self._over_rows = {node for node in every if over_rows(node)}
        self._inductors = {node for node in every if is_inductors(node)}
        self._least = {node: _least(node, self._all) for node in self._computed}
        self._bytes = {node: bytes_of(node) for node in self._computed}
        self._stages = _stages(part)
        self._gemm = sum(map(_operations, part.anchors)) // _OPERATIONS_PER_BYTE
        self._read = [*self._reads_from_outside(part)]

    def _reads_from_outside(self, part: Part) -> Iterator[tuple[Node, int, Node]]:
        """What is read from outside, its bytes, and the node that reads it."""
        for node in self._computed:
            for read in node.all_input_nodes:
                origin = source(read)
                if origin not in self._all and holds_tensor(origin) and node not in part.anchors:
                    yield origin, min(bytes_of(read), bytes_of(origin)), node

    def of(self, part: Part) -> int:
        """The bytes that are moved when the fused kernel is ``part``."""
        inside = part.nodes
        stored: set[Node] = set()
        loaded: dict[tuple[Node, Kernel], int] = {
            (origin, self._runs_in(reader, inside)): size for origin, size, reader in self._read
        }
        for node in self._computed:
            made_in = self._runs_in(node, inside)
            for reader in self._readers[node]:
                kernel = self._reads_in(reader, node, inside)
                is_inside = node in inside and reader in inside
                if kernel == made_in or is_inside:
                    continue
                value = self._least[node] if reader in self._inductors else node
                loaded[value, kernel] = self._bytes[value]
                # TorchInductor computes again what a reduction over the rows reads.
                if value in inside or reader not in self._over_rows:
                    stored.add(value)
        repeats = len({self._stages[node] for node in inside}) - 1
        return sum(self._bytes[node] for node in stored) + sum(loaded.values()) + repeats * self._gemm

    def _runs_in(self, node: Node, inside: frozenset[Node]) -> Kernel:
        is_inside = node in inside
        return is_inside, self._stages[node], node in self._over_rows and not is_inside

    def _reads_in(self, reader: Node, node: Node, inside: frozenset[Node]) -> Kernel:
        if reader in self._all:
            return self._runs_in(reader, inside)
        return (False, self._stages[node], reader in self._over_rows) if reader in self._beside else reader


def _beside(graph: Field, part: Part) -> set[Node]:
    """What TorchInductor fuses with nodes of the part: what depends on it, and on nothing else behind it."""
    inside = part.nodes
    found: set[Node] = set()
    pending = [(part.order[user], user) for node in inside for user in node.users]
    heapq.heapify(pending)
    while pending:
        _, node = heapq.heappop(pending)
        if node in inside or node in found or node in graph.taken or not is_inductors(node):
            continue
        if all(i in inside or i in found or i not in part.below for i in node.all_input_nodes):
            found.add(node)
            for user in node.users:
                heapq.heappush(pending, (part.order[user], user))
    return found


def _stages(part: Part) -> dict[Node, int]:
    """How many reductions over the rows each node waits for.

    What a reduction gives, and what is computed from that alone, is ready at the end of its own stage.
    """
    columns = max(tensor(anchor).shape[-1] for anchor in part.anchors)
    stages: dict[Node, int] = {}
    late: set[Node] = set()
    for node in part.sorted(part.nodes):
        read = [i for i in node.all_input_nodes if i in stages]
        stages[node] = max((stages[i] for i in read), default=0)
        is_late = any(i in late and stages[i] == stages[node] for i in read)
        if is_late and elements(node) > columns:
            stages[node] += 1
        elif is_late or (node in part.behind and over_rows(node)):
            late.add(node)
    return stages


def _operations(anchor: Node) -> int:
    return 2 * elements(anchor) * factors(anchor)[0].meta["val"].shape[-1]


def _least(node: Node, inside: frozenset[Node]) -> Node:
    """What a kernel that reads ``node`` can compute it from by a cast, if that is smaller."""
    while is_cast(node) and (origin := source(_input(node))) in inside and bytes_of(origin) <= bytes_of(node):
        node = origin
    return node
