"""Where ComFuse did not run a fused kernel, and why.

Nothing falls back in silence: whoever falls back calls :func:`record`, which counts, logs each
(where, reason) once at WARNING on the logger ``comfuse``, and raises under ``COMFUSE_STRICT=1``.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from comfuse import settings
from comfuse.errors import FallbackError

_LOGGER = logging.getLogger("comfuse")
_LOCK = threading.Lock()
_COUNTS: Counter[tuple[str, str]] = Counter()
_NOTED: Counter[tuple[str, str]] = Counter()
_SOURCES: list[tuple[Callable[[], Mapping[tuple[str, str], int]], Callable[[], None]]] = []


def record(where: str, reason: str) -> None:
    """Counts one fallback of ``where`` (an op or a function) for ``reason`` (a sentence a user can act on).

    Raises:
        FallbackError: ``COMFUSE_STRICT`` is 1.  The fallback is counted all the same.
    """
    with _LOCK:
        _COUNTS[where, reason] += 1
        first = _COUNTS[where, reason] == 1
    if settings.strict():
        raise FallbackError(where, reason)
    if first:
        _LOGGER.warning("%s: not fused: %s", where, reason)


def note(where: str, what: str) -> None:
    """Counts what ``where`` did beside its kernel, such as a copy; neither logged nor an error."""
    _NOTED[where, what] += 1


def counts() -> dict[tuple[str, str], int]:
    """How often each (where, reason) happened in this process since the last :func:`reset`."""
    with _LOCK:
        total = _COUNTS + _NOTED
    for read, _ in _SOURCES:
        total.update(read())
    return {key: number for key, number in total.items() if number}


def reset() -> None:
    """Forgets all counts; the next fallback of each kind is logged again."""
    with _LOCK:
        _COUNTS.clear()
        _NOTED.clear()
    for _, clear in _SOURCES:
        clear()


def add_source(read: Callable[[], Mapping[tuple[str, str], int]], clear: Callable[[], None]) -> None:
    """Adds counts that are kept elsewhere (the binding counts the copies it makes in C++)."""
    _SOURCES.append((read, clear))
