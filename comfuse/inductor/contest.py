"""The region finder: which parts of a graph may become fused kernels.

Each GEMM, or two side by side, is offered what depends on it.  Parts that overlap are settled in the order of
the bytes that they save, of two equal ones the later first, so that the result of the earlier GEMM enters as
a tile; the others grow again around what is settled.  In the end parts that follow each other are joined to
chains where one kernel pays, also those that are not worth a kernel of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.fx import Graph, Node

from comfuse.frontend.errors import TraceError
from comfuse.frontend.lowered import Lowered
from comfuse.frontend.source import location
from comfuse.frontend.symbols import Table
from comfuse.inductor import chains
from comfuse.inductor.absorb import absorb
from comfuse.inductor.candidate import Candidate
from comfuse.inductor.grow import RETURNED, Field, grow
from comfuse.inductor.lowerer import lowered
from comfuse.inductor.merge import merge_views
from comfuse.inductor.nodes import (
    elements,
    factors,
    holds_tensor,
    is_anchor,
    is_free,
    is_reduction,
    over_rows,
    source,
    tensor,
)
from comfuse.inductor.pair import partner
from comfuse.inductor.part import Part
from comfuse.inductor.policy import Policy
from comfuse.inductor.splits import unpack_splits
from comfuse.inductor.trim import saved, strip, trim
from comfuse.inductor.turn import turn_rows
from comfuse.inductor.verdict import Verdict

aten = torch.ops.aten

# How often a part that the front end refuses is cut and offered again.
_ATTEMPTS = 12


def find(graph: Graph, policy: Policy) -> tuple[list[Candidate], list[Verdict]]:
    """The parts of a graph that the front end takes, and for each other GEMM why it has none.

    No two overlap, and the graph has an order in which each runs as one node.  Splits in ``graph`` become
    slices, equal factors of GEMMs one node, and rows are turned ahead of a GEMM where they were behind it and
    that costs nothing; else it is only read.
    """
    unpack_splits(graph)
    merge_views(graph)
    return _Contest(graph, policy, turn_rows(graph)).settle()


@dataclass(frozen=True)
class _Offer:
    """GEMMs, and how many bytes their part saves where no other is settled."""

    anchors: tuple[Node, ...]
    saved: int


@dataclass(frozen=True)
class _Ended:
    """A part up to where it is to end, and how many bytes it saves."""

    part: Part
    saved: int


class _Contest:
    def __init__(self, graph: Graph, policy: Policy, notes: Mapping[Node, str]) -> None:
        self._field = Field.of(graph)
        self._notes = notes
        self._policy = policy
        self._anchors = [node for node in graph.nodes if is_anchor(node)]
        self._candidates: list[Candidate] = []
        self._verdicts: list[Verdict] = []
        self._readings: dict[frozenset[Node], tuple[Lowered, Table]] = {}
        self._left: list[Node] = []  # GEMMs whose parts are not worth a kernel, or refused

    def settle(self) -> tuple[list[Candidate], list[Verdict]]:
        offers = self._offers([anchor for anchor in self._anchors if self._is_product(anchor)])
        for offer in sorted(offers, key=lambda o: (o.saved, self._field.order[o.anchors[-1]]), reverse=True):
            self._settle(offer.anchors)
        self._join()
        order = self._field.order
        self._candidates.sort(key=lambda c: order[c.anchors[0]])
        places = {anchor.name: i for i, anchor in enumerate(self._anchors)}
        self._verdicts.sort(key=lambda v: places[v.anchor])
        return self._candidates, self._verdicts

    def _is_product(self, anchor: Node) -> bool:
        """Whether the front end takes a GEMM as such."""
        if not all(map(holds_tensor, (anchor, *factors(anchor)))):
            self._leave(anchor, "the graph does not say what its shape is")
            return False
        if self._field.reads_written(anchor):
            self._leave(anchor, "it reads what the graph changes in place")
            return False
        try:
            lowered(Part.of(anchor, self._field.order).candidate())
        except TraceError as e:
            self._leave(anchor, e.reason)
            return False
        return True

    def _offers(self, anchors: list[Node]) -> list[_Offer]:
        found: list[tuple[Node, ...]] = []
        free = [*anchors]
        while free:
            last = free.pop()
            other = partner(self._field, last, free)
            if other is not None:
                free.remove(other)
            found.append((last,) if other is None else (other, last))
        return [_Offer(group, self._part(group).saved) for group in found]

    def _part(self, anchors: tuple[Node, ...]) -> _Ended:
        return self._ended(absorb(self._field, grow(self._field, anchors)))

    def _ended(self, part: Part) -> _Ended:
        if self._policy.force:
            part = strip(part)
            return _Ended(part, saved(self._field, part))
        return _Ended(*trim(self._field, part))

    def _settle(self, anchors: tuple[Node, ...]) -> None:
        """Finds the part around anchors that the front end takes."""
        part, reason = self._accepted(self._part(anchors))
        if part is None and len(anchors) > 1:
            for anchor in reversed(anchors):
                self._settle((anchor,))
        elif part is None:
            self._left.append(anchors[0])
            self._leave(anchors[0], reason)
        else:
            self._field.take(part.nodes)
            alone = partial(self._alone, part) if len(anchors) > 1 else None
            shorter = partial(self._shorter, part)
            self._candidates.append(replace(self._candidate(part), shorter=shorter, alone=alone))

    def _join(self) -> None:
        """Makes chains of parts that follow each other; others learn why they are none."""
        joined, apart = chains.join([*self._candidates, *self._bare()], self._field.order, self._policy)
        inside = {anchor.name for chain in joined for anchor in chain.anchors}
        others = [replace(c, apart=apart.get(c.anchors[0].name, "")) for c in self._candidates]
        chained = [self._with_links(chain) for chain in joined]
        self._candidates = [c for c in others if c.anchors[0].name not in inside] + chained
        self._verdicts = [
            replace(v, apart=apart.get(v.anchor, "")) for v in self._verdicts if v.anchor not in inside
        ]

    def _bare(self) -> list[Candidate]:
        """The parts of GEMMs without a kernel that may be in a chain.  No two overlap."""
        middles = {source(factors(anchor)[0]) for anchor in self._anchors if holds_tensor(factors(anchor)[0])}
        parts: list[Part] = []
        for anchor in sorted(self._left, key=self._field.order.__getitem__):
            ended = self._part((anchor,))
            if not ended.part.nodes & middles and source(factors(anchor)[0]) not in self._field.taken:
                continue
            part, _ = self._accepted(ended, bare=True)
            if part is not None:
                parts.append(part)
                self._field.take(part.nodes)
        for part in parts:
            self._field.give_back(part.nodes)
        return [part.candidate() for part in parts]

    def _with_links(self, chain: Candidate) -> Candidate:
        """A chain that knows what its links are without it."""
        names = {anchor.name for anchor in chain.anchors}
        candidates = [c for c in self._candidates if c.anchors[0].name in names]
        verdicts = [v for v in self._verdicts if v.anchor in names]
        return replace(chain, alone=lambda: (candidates, verdicts))

    def _shorter(self, part: Part) -> Iterator[Candidate]:
        """The part ended ahead of its last reduction along rows, ahead of the one before, and so on."""
        depth = _depths(part)
        for most in reversed(range(max(depth.values()))):
            late = [node for node in part.behind if depth[node] > most]
            shorter, _ = self._accepted(_Ended(*trim(self._field, part, part.without(late))))
            if shorter is not None:
                yield self._candidate(shorter)

    def _alone(self, part: Part) -> tuple[list[Candidate], list[Verdict]]:
        """What the GEMMs of a part get where each has a part of its own."""
        self._field.give_back(part.nodes)
        self._candidates, self._verdicts = [], []
        for anchor in reversed(part.anchors):
            self._settle((anchor,))
        return self._candidates, self._verdicts

    def _accepted(self, ended: _Ended, *, bare: bool = False) -> tuple[Part | None, str]:
        """The part as far as the front end takes it; or None, and why there is none.

        ``bare``: also a part that is not worth a kernel.
        """
        refusal = ""
        for _ in range(_ATTEMPTS):
            part = ended.part
            reason = self._idle(ended)
            if reason and not bare:
                return None, f"{reason}: {refusal or _end(part)}"
            try:
                found = lowered(part.candidate())
                self._readings[part.nodes] = found.lowered, found.table
                return part, ""
            except TraceError as e:
                refusal = f"{e.node}: {e.reason}"
                shorter = _cut(part, e)
                if shorter is None:
                    return None, refusal
                ended = self._ended(shorter)
        return None, f"the front end does not take what is behind it, at last {refusal}"

    def _candidate(self, part: Part) -> Candidate:
        """A part that was accepted."""
        return replace(part.candidate(), reading=self._readings[part.nodes])

    def _idle(self, ended: _Ended) -> str:
        """Why a part is not worth a kernel; nothing if it may be."""
        part = ended.part
        work = [node for node in part.behind if node not in part.anchors and not is_free(node)]
        if not work:
            return "nothing to fuse behind it"
        if self._policy.force:
            return ""
        if all(_is_bias(node, part) for node in work) and len(work) <= len(part.anchors):
            return "nothing to fuse behind it but a bias"
        return "" if ended.saved > 0 else "what could be fused saves no memory traffic"

    def _leave(self, anchor: Node, reason: str) -> None:
        self._verdicts.append(left(anchor, "; ".join((reason, *filter(None, [self._notes.get(anchor)])))))


def left(anchor: Node, reason: str) -> Verdict:
    """The verdict for a GEMM that TorchInductor keeps."""
    return Verdict(anchor.name, location(anchor), fused=False, reason=reason, shape=_shape(anchor))


def _cut(part: Part, error: TraceError) -> Part | None:
    """The part without what the front end refuses; None if that is an anchor.

    Where the node reads what the part computes from outside, that is left outside first.
    """
    found = {node.name: node for node in part.nodes}.get(error.node or "")
    if found is None:
        found = part.sorted(part.nodes)[-1]
    if found in part.ahead:
        return part.without([found])
    computed = [i for i in found.all_input_nodes if i in part.ahead]
    if computed:
        return part.without(computed)
    return None if found in part.anchors else part.without([found], error.reason)


def _depths(part: Part) -> dict[Node, int]:
    """How many reductions along rows, one behind the other, end in each node behind the GEMMs."""
    depth: dict[Node, int] = {}
    for node in part.sorted(part.behind):
        read = max((depth[i] for i in node.all_input_nodes if i in depth), default=0)
        depth[node] = read + (is_reduction(node) and not over_rows(node))
    return depth


def _end(part: Part) -> str:
    """What stands at the first border of a part."""
    if not part.stopped:
        return "nobody reads its result"
    name, reason = part.stopped[0]
    return reason if reason == RETURNED else f"{name}: {reason}"


def _is_bias(node: Node, part: Part) -> bool:
    if node.target is not aten.add.Tensor:
        return False
    others = [i for i in node.all_input_nodes if i not in part.behind]
    columns = math.prod(tensor(part.anchors[0]).shape[-1:])
    return len(others) == 1 and elements(others[0]) == columns


def _shape(anchor: Node) -> tuple[int | str, int | str, int | str]:
    """(M, N, K), the rows of all batches."""
    if not all(map(holds_tensor, (anchor, *factors(anchor)))):
        return "?", "?", "?"
    *rows, columns = tensor(anchor).shape
    return _size(rows), _size([columns]), _size(tensor(factors(anchor)[0]).shape[-1:])


def _size(sizes: Iterable[int | torch.SymInt]) -> int | str:
    size = math.prod(sizes)
    return size if isinstance(size, int) else str(size)
