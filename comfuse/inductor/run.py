"""The pass over one graph: every GEMM gets its verdict, and fused ones their calls of the op."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace as changed

import torch
from torch.fx import Graph, Node

from comfuse import fallbacks
from comfuse.errors import CalibrationError, FallbackError, TableError, ToolchainError
from comfuse.frontend.errors import TraceError
from comfuse.inductor import background, chains, choose, contest, jit, lowerer
from comfuse.inductor.candidate import Candidate, Found
from comfuse.inductor.policy import Policy
from comfuse.inductor.replace import replace
from comfuse.inductor.verdict import Verdict

_LOGGER = logging.getLogger("comfuse")
_WHERE = "torch.compile"


def run(graph: Graph, policy: Policy, *, build: bool = True) -> list[Verdict]:
    """Fuses what pays in ``graph``, and says what became of each of its GEMMs.

    Without ``build`` no kernel is compiled, and the graph is only for show.

    A bug in ComFuse costs no more than the region that it shows in, which is left to TorchInductor; it is
    logged and counted (:mod:`comfuse.fallbacks`).

    Raises:
        FallbackError: there is a bug, or a kernel cannot or may not be built, and ``COMFUSE_STRICT`` is 1.
        ToolchainError: there is no compiler, and ``COMFUSE_JIT`` is ``require``.
    """
    try:
        candidates, verdicts = contest.find(graph, policy)
    except Exception as e:
        report_bug(e, "looking for regions", "\n".join(str(node) for node in graph.nodes))
        return []
    chosen, left = _decided(candidates, policy)
    verdicts += left
    try:
        settled, left = _settled(chosen, policy, build)
    except (FallbackError, ToolchainError):  # which the user asked for
        raise
    except Exception as e:
        return verdicts + [v for found, _ in chosen for v in _left_after(e, found.candidate, found)]
    verdicts += left
    apart = {anchor.name: c.apart for c in candidates for anchor in c.anchors}
    now: dict[Node, Node] = {}  # what took the place of outputs of regions
    for found, verdict in settled:
        inputs = tuple(now.get(node, node) for node in found.candidate.inputs)
        candidate = changed(found.candidate, inputs=inputs)
        try:
            if verdict.fused:
                now |= replace(graph, changed(found, candidate=candidate))
            verdicts += choose.of_anchors(found, verdict)
        except Exception as e:
            verdicts += _left_after(e, candidate, found)
    return [changed(v, apart=v.apart or apart.get(v.anchor, "")) for v in verdicts]


def regions(graph: Graph, policy: Policy) -> list[Candidate]:
    """The regions that :func:`run` has verdicts on in the end, fused or not; for a graph that is for show."""
    candidates, _ = contest.find(graph, policy)
    chosen, _ = _decided(candidates, policy)
    settled, _ = _settled(chosen, policy, build=False)
    return [found.candidate for found, _ in settled]


def _decided(
    candidates: Sequence[Candidate], policy: Policy
) -> tuple[list[tuple[Found, Verdict]], list[Verdict]]:
    """The regions of candidates with their verdicts, and the verdicts of what has none."""
    chosen: list[tuple[Found, Verdict]] = []
    verdicts: list[Verdict] = []
    for candidate in candidates:
        found: Found | None = None
        try:
            found = lowerer.lowered(candidate)
            of_candidate, left = _chosen(found, policy)
            chosen += of_candidate
            verdicts += left
        except Exception as e:
            verdicts += _left_after(e, candidate, found)
    return chosen, verdicts


def _chosen(found: Found, policy: Policy) -> tuple[list[tuple[Found, Verdict]], list[Verdict]]:
    """The longest region of a candidate that pays, with its verdict; the whole of it where none does.

    Of two GEMMs side by side each may have a region instead, or a verdict that says why it has none.
    """
    whole = found, choose.verdict(found, policy)
    if whole[1].fused:
        return [whole], []
    for candidate in found.candidate.shorter():
        shorter = lowerer.lowered(candidate)
        verdict = choose.verdict(shorter, policy)
        if verdict.fused:
            return [(shorter, verdict)], []
    if found.candidate.alone is not None:
        regions, left = _alone(found, policy)
        if any(verdict.fused for _, verdict in regions):
            return regions, left
    return [whole], []


def _alone(found: Found, policy: Policy) -> tuple[list[tuple[Found, Verdict]], list[Verdict]]:
    """The regions that several GEMMs, or the links of a chain, have instead of one; and who has none."""
    assert found.candidate.alone is not None
    candidates, left = found.candidate.alone()
    chosen = [_chosen(lowerer.lowered(candidate), policy) for candidate in candidates]
    regions = [region for regions, _ in chosen for region in regions]
    return regions, [*left, *(verdict for _, others in chosen for verdict in others)]


def _apart(found: Found, policy: Policy, reason: str) -> tuple[list[tuple[Found, Verdict]], list[Verdict]]:
    """The links of a chain that is none for a reason, which their verdicts have."""
    regions, left = _alone(found, policy)
    said = chains.apart(found.candidate.links, reason)
    return (
        [(region, changed(verdict, apart=said[verdict.anchor])) for region, verdict in regions],
        [changed(verdict, apart=said[verdict.anchor]) for verdict in left],
    )


def _settled(
    chosen: Sequence[tuple[Found, Verdict]], policy: Policy, build: bool
) -> tuple[list[tuple[Found, Verdict]], list[Verdict]]:
    """The regions once it is known which kernels there are, and the verdicts of what has none.

    Where a chain's kernel cannot be had, its links are settled instead; while it is built in the background
    they are not, since they would be built for the meantime only.
    """
    settled: list[tuple[Found, Verdict]] = []
    left: list[Verdict] = []
    for (found, before), verdict in zip(chosen, jit.settle(chosen, policy, build=build), strict=True):
        if isinstance(verdict, Exception):
            left += _left_after(verdict, found.candidate, found)
            continue
        is_lost = before.fused and not verdict.fused and verdict.reason != background.BUILDING
        if found.candidate.links and is_lost:
            try:
                links, others = _apart(found, policy, verdict.reason)
                of_links, left_of_links = _settled(links, policy, build)
            except (FallbackError, ToolchainError):  # which the user asked for
                raise
            except Exception as e:
                left += _left_after(e, found.candidate, found)
                continue
            settled += of_links
            left += [*others, *left_of_links]
        else:
            settled.append((found, verdict))
    return settled, left


def _left_after(error: Exception, candidate: Candidate, found: Found | None) -> list[Verdict]:
    """The verdicts for the anchors of a candidate that is refused, or in which a bug showed.

    Raises:
        FallbackError: it is a bug or a file that cannot be read, and ``COMFUSE_STRICT`` is 1.
    """
    if isinstance(error, TraceError):
        return [contest.left(anchor, error.reason) for anchor in candidate.anchors]
    if isinstance(error, CalibrationError | TableError):
        fallbacks.record(_WHERE, str(error))
        return [contest.left(anchor, str(error)) for anchor in candidate.anchors]
    nodes = [node.format_node() or str(node) for node in candidate.nodes]
    spec = "" if found is None else found.lowered.spec.text()
    report_bug(error, candidate.anchors[0].name, "\n".join(nodes), spec)
    return [contest.left(anchor, f"a bug in ComFuse: {_line(error)}") for anchor in candidate.anchors]


def report_bug(error: Exception, where: str, nodes: str, spec: str = "") -> None:
    """Counts a bug of a pass, and logs it once with what reproduces it.

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
