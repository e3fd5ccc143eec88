"""A part of a graph that may become one fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch.fx import Node

from comfuse.frontend.lowered import Lowered
from comfuse.frontend.symbols import Table
from comfuse.inductor.verdict import Verdict


@dataclass(frozen=True)
class Candidate:
    """Nodes around one GEMM, two side by side, or a chain.  No way out of them leads back in.

    Attributes:
        anchors: the GEMMs.
        nodes: all nodes, the anchors among them, in the graph's order.
        inputs: what they read from outside, each once, in the order in which it is first read.
        outputs: those that are read outside, in the graph's order.
        stopped: the first node at each of its borders, and why it ends there.
        shorter: finds candidates that end earlier, the longest first, for where this one does not pay.
        reading: what the front end made of it, and the samples of :class:`Found`, where it was read already.
        alone: finds, in the place of several GEMMs, a candidate for each, or for each link of a chain, and
            says why one has none; for where neither this one nor a shorter one pays.
        links: of a chain, the candidates that it joins, in the order in which they run.
        apart: why it is not joined with the GEMM ahead of it or behind it; nothing where there is none.
    """

    anchors: tuple[Node, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    stopped: tuple[tuple[str, str], ...] = ()
    reading: tuple[Lowered, Table] | None = field(default=None, compare=False, repr=False)
    shorter: Callable[[], Iterable[Candidate]] = field(default=tuple, compare=False, repr=False)
    alone: Callable[[], tuple[list[Candidate], list[Verdict]]] | None = field(
        default=None, compare=False, repr=False
    )
    links: tuple[Candidate, ...] = ()
    apart: str = ""


@dataclass(frozen=True)
class Found:
    """A candidate that the front end understands.

    Attributes:
        candidate: the nodes.
        lowered: its spec, and which input is what.  Where rows are symbolic, of sample sizes; the spec is the
            same for all numbers.
        table: the samples; empty where no size is symbolic.
    """

    candidate: Candidate
    lowered: Lowered
    table: Table = field(default_factory=dict)

    @property
    def dynamic(self) -> bool:
        """Whether its number of rows is symbolic."""
        return bool(self.table)
