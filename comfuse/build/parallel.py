"""Several builds at once, which end together: all of them, or none where the user interrupts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from comfuse.build.progress import BuildEvent, Progress
from comfuse.errors import ComFuseError

T = TypeVar("T")


@dataclass(frozen=True)
class Task(Generic[T]):
    """One build.  ``run`` has to call what it is given several times a second: it may raise, to end it."""

    name: str
    run: Callable[[Progress], T]


class _Interrupted(BaseException):
    """Ends a build whose result nobody waits for any more."""


def run_all(
    tasks: Sequence[Task[T]], *, jobs: int, progress: Progress | None = None
) -> list[T | ComFuseError]:
    """What each task gives, or the error of ours that it ended with, in the order of ``tasks``.

    Args:
        jobs: tasks at once, at least 1.
        progress: gets the events of all tasks, from several threads.

    Raises:
        KeyboardInterrupt: builds under way and their compilers have been ended.
        Whatever else a task raises.
    """
    if not tasks:
        return []
    interrupted = threading.Event()

    def report(event: BuildEvent) -> None:
        if interrupted.is_set():
            raise _Interrupted
        if progress is not None:
            progress(event)

    with ThreadPoolExecutor(max_workers=min(jobs, len(tasks)), thread_name_prefix="comfuse-build") as pool:
        futures = [pool.submit(_outcome, task, report) for task in tasks]
        try:
            wait(futures)
        except BaseException:
            interrupted.set()
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]


def _outcome(task: Task[T], report: Progress) -> T | ComFuseError:
    try:
        return task.run(report)
    except ComFuseError as e:
        return e
