"""The pass over one graph: every GEMM gets its verdict, and fused ones their calls of the op."""

from __future__ import annotations

import logging
import math
from dataclasses import replace as changed

import torch
from torch.fx import Graph, Node

from comfuse import fallbacks
from comfuse.frontend.errors import TraceError
from comfuse.frontend.gemm import FACTORS
from comfuse.frontend.source import location
from comfuse.inductor import choose, contest, lowerer
from comfuse.inductor.candidate import Candidate, Found
from comfuse.inductor.policy import Policy
from comfuse.inductor.replace import replace
from comfuse.inductor.verdict import Verdict

_LOGGER = logging.getLogger("comfuse")
_WHERE = "torch.compile"


def run(graph: Graph, policy: Policy) -> list[Verdict]:
    """Fuses what pays in ``graph``, and says what became of each of its GEMMs.

    A bug in ComFuse costs no more than the region that it shows in, which is left to TorchInductor; it is
    logged and counted (:mod:`comfuse.fallbacks`).

    Raises:
        FallbackError: there is a bug, and ``COMFUSE_STRICT`` is 1.
    """
    try:
        candidates, verdicts = contest.find(graph, policy)
    except Exception as e:
        _report(e, "looking for regions", "\n".join(str(node) for node in graph.nodes))
        return []
    now: dict[Node, Node] = {}
    for candidate in candidates:
        inputs = tuple(now.get(node, node) for node in candidate.inputs)
        verdicts += _take(graph, changed(candidate, inputs=inputs), policy, now)
    return verdicts


def _take(graph: Graph, candidate: Candidate, policy: Policy, now: dict[Node, Node]) -> list[Verdict]:
    """The verdicts for a candidate's anchors; ``now`` learns what took the place of its outputs."""
    found: Found | None = None
    try:
        found = lowerer.lowered(candidate)
        verdict = choose.verdict(found, policy)
        if verdict.fused:
            now |= replace(graph, found)
        return [changed(verdict, anchor=a.name, location=location(a)) for a in candidate.anchors]
    except TraceError as e:
        return [_left(anchor, e.reason) for anchor in candidate.anchors]
    except Exception as e:
        nodes = [node.format_node() or str(node) for node in candidate.nodes]
        _report(
            e, candidate.anchors[0].name, "\n".join(nodes), "" if found is None else found.lowered.spec.text()
        )
        return [_left(anchor, f"a bug in ComFuse: {_line(e)}") for anchor in candidate.anchors]


def _report(error: Exception, where: str, nodes: str, spec: str = "") -> None:
    """Counts a bug, and logs it once with what reproduces it.

    Raises:
        FallbackError: ``COMFUSE_STRICT`` is 1.
    """
    reason = f"a bug in ComFuse at {where}: {_line(error)}"
    if (_WHERE, reason) not in fallbacks.counts():
        _LOGGER.error(
            "%s. TorchInductor compiles this part without ComFuse. Please report it with the lines below; "
            "COMFUSE_STRICT=1 raises instead.\n"
            "torch %s, nodes:\n%s\nspec:\n%s",
            reason,
            torch.__version__,
            nodes,
            spec or "(none yet)",
            exc_info=error,
        )
    fallbacks.record(_WHERE, reason)


def _line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _left(anchor: Node, reason: str) -> Verdict:
    """The verdict for a GEMM that TorchInductor keeps."""
    a, b = (anchor.args[i].meta["val"] for i in FACTORS[anchor.target])  # type: ignore[union-attr]
    sizes = (math.prod(a.shape[:-1]), b.shape[-1], a.shape[-1])
    m, n, k = (size if isinstance(size, int) else str(size) for size in sizes)
    return Verdict(anchor.name, location(anchor), False, reason, (m, n, k))
