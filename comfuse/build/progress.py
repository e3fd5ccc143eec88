"""What builds say of themselves while they run, and one line for people that sums it up."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType
from typing import Literal, TextIO

_LOGGER = logging.getLogger("comfuse")
_EXPECTED_SECONDS = 10.0  # of a build, before the first has ended
_REDRAW_SECONDS = 0.2
_SAY_SECONDS = 10.0  # between lines where there is no terminal


@dataclass(frozen=True)
class BuildEvent:
    """One step of a build, for a progress display.

    ``cached``, ``done`` and ``failed`` are last; ``waiting`` (for another process) and ``compiling`` come
    repeatedly.
    """

    name: str
    stage: Literal["cached", "waiting", "compiling", "done", "failed"]
    seconds: float


Progress = Callable[[BuildEvent], None]


class Display:
    """A line that says how far several builds are and how long the rest will take.

    It is rewritten in place on a terminal; elsewhere ``say`` gets it every ten seconds.  ``say`` always gets
    the beginning and the end; it logs at INFO if not given.  Used as a context manager, and called with every
    event, from any thread.

    ``what`` is the word for what is built, ``expected`` the seconds that one takes, until one has ended.
    """

    def __init__(
        self,
        names: Sequence[str],
        jobs: int,
        *,
        what: str = "kernel",
        expected: float = _EXPECTED_SECONDS,
        say: Callable[[str], None] | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = list(names)
        self._jobs = max(1, min(jobs, len(self._names)))
        self._what = what
        self._expected = expected
        self._say = say or _log
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._drawn = self._began - _REDRAW_SECONDS
        self._said = self._began
        self._running: dict[str, float] = {}  # seconds so far
        self._ended: dict[str, float] = {}
        self._failed = 0

    def __enter__(self) -> Display:
        self._say(self.text())
        return self

    def __call__(self, event: BuildEvent) -> None:
        with self._lock:
            if event.stage in ("cached", "done", "failed"):
                self._running.pop(event.name, None)
                self._ended[event.name] = event.seconds
                self._failed += event.stage == "failed"
            else:
                self._running[event.name] = event.seconds
            now = self._clock()
            if self._stream.isatty():
                if now - self._drawn >= _REDRAW_SECONDS:
                    self._drawn = now
                    self._stream.write(f"\r\x1b[2K{self.text()}")
                    self._stream.flush()
            elif now - self._said >= _SAY_SECONDS:
                self._said = now
                self._say(self.text())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream.isatty():
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
        built = len(self._ended) - self._failed
        ended = "interrupted, " if error is not None else ""
        failed = f", {self._failed} failed" if self._failed else ""
        self._say(f"{ended}{built} built{failed}, after {self._clock() - self._began:.0f} s")

    def text(self) -> str:
        """The line as it stands."""
        count = len(self._names)
        return (
            f"comfuse: building {count} {self._what}{'' if count == 1 else 's'}, {self._jobs} at a time: "
            f"{len(self._ended)} done, about {self.seconds_left():.0f} s left"
        )

    def seconds_left(self) -> float:
        """How long the rest takes if each build takes as long as those that have ended."""
        each = fmean(self._ended.values()) if self._ended else self._expected
        running = [max(0.0, each - seconds) for seconds in self._running.values()]
        waiting = len(self._names) - len(self._ended) - len(running)
        # The longest of those under way, or all that is left in equal shares.
        return max([*running, (sum(running) + waiting * each) / self._jobs])


def _log(line: str) -> None:
    _LOGGER.info("%s", line)
