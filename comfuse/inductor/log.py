"""What became of the GEMMs of all graphs that were compiled in this process.  Safe to use from any thread."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence

from comfuse.inductor.verdict import Verdict

_GRAPHS = 4096  # that are remembered; the counts go on beyond

_LOCK = threading.Lock()
_COMPILES: deque[tuple[Verdict, ...]] = deque(maxlen=_GRAPHS)
_COUNTS: Counter[str] = Counter()


def record(verdicts: Sequence[Verdict]) -> None:
    """Notes the verdicts of one graph, in its order.  A graph from TorchInductor's cache has none."""
    with _LOCK:
        _COMPILES.append(tuple(verdicts))
        _COUNTS.update("fused" if verdict.fused else f"left: {verdict.reason}" for verdict in verdicts)


def verdicts() -> list[Verdict]:
    """Those of all graphs since the last :func:`clear`, the oldest first."""
    return [verdict for compiled in compiles() for verdict in compiled]


def compiles() -> list[tuple[Verdict, ...]]:
    """The verdicts of each graph, the oldest first."""
    with _LOCK:
        return list(_COMPILES)


def counts() -> dict[str, int]:
    """How many GEMMs became ``"fused"``, and how many ``"left: REASON"`` for each reason."""
    with _LOCK:
        return dict(_COUNTS)


def clear() -> None:
    """Forgets all verdicts and counts."""
    with _LOCK:
        _COMPILES.clear()
        _COUNTS.clear()
