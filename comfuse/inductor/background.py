"""Builds kernels while the program runs, and has what waits for them compiled again.

A function that was compiled without a region, because its kernels were not built yet, carries a guard of
TorchDynamo on a flag of this module.  The flag is raised when the kernels are built.  Then the guard fails at
the next call, and TorchDynamo compiles the function again, in the thread that calls it, with the region in
it.  Functions that wait for nothing keep their code.  What TorchDynamo did not compile takes the kernels when
it is compiled the next time.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch._guards import CompileContext

from comfuse import fallbacks
from comfuse.build import jobs_that_fit
from comfuse.build.parallel import Task
from comfuse.build.progress import BuildEvent
from comfuse.errors import ComFuseError, FallbackError

_LOGGER = logging.getLogger("comfuse")
#: Why a region is not fused for now.
BUILDING = "its kernels are being built in the background"


@dataclass
class _Compiled:
    """A function that waits for kernels.

    Attributes:
        flag: the global of this module that it is guarded by.
        waits: names of the kernels that are not built yet.
        replaceable: names of those in whose place others are built where they fail.
        gained: whether one that it waited for was built, or others may be in its place.
    """

    flag: str
    waits: set[str] = field(default_factory=set)
    replaceable: set[str] = field(default_factory=set)
    gained: bool = False


_CHANGED = threading.Condition()  # guards all below
_QUEUE: deque[Task[Any]] = deque()
_UNDER_WAY: set[str] = set()  # names: in the queue or being built
_FAILED: dict[str, str] = {}  # why, by name
_THREADS = 0
_RAISING = 0  # flags that are about to be raised
_WAITING: list[_Compiled] = []
_LAST: dict[Any, _Compiled] = {}  # by TorchDynamo's compile id, which begins anew after a reset
_NUMBERS = itertools.count()


def start(tasks: Iterable[Task[Any]], replaceable: Iterable[str] = ()) -> dict[str, str]:
    """Begins with builds that are not under way yet.  Why the kernel of each is not there now, by its name.

    The function that TorchDynamo is compiling in this thread is compiled again when they have ended, if one
    was built, or one of ``replaceable`` failed.  Its backward pass counts as the same function.
    """
    global _THREADS
    tasks = list(tasks)
    compiled = _current()
    with _CHANGED:
        for task in tasks:
            if task.name not in _UNDER_WAY and task.name not in _FAILED:
                _UNDER_WAY.add(task.name)
                _QUEUE.append(task)
        waits = {task.name for task in tasks if task.name in _UNDER_WAY}
        if compiled is not None and waits:
            compiled.waits |= waits
            compiled.replaceable |= waits.intersection(replaceable)
            _WAITING.append(compiled)
        while min(jobs_that_fit(), len(_UNDER_WAY)) > _THREADS:
            _THREADS += 1
            # Daemons: a program that ends does not wait for kernels, and their compilers end with it.
            threading.Thread(target=_work, name=f"comfuse-build-{_THREADS}", daemon=True).start()
        return {task.name: _FAILED.get(task.name, BUILDING) for task in tasks}


def wait(timeout: float | None = None) -> bool:
    """Waits until no kernel is being built, and what waited for them is compiled again at its next call.

    Not for use while TorchDynamo compiles in this thread.  False if it takes longer than ``timeout`` seconds.
    """
    with _CHANGED:
        return _CHANGED.wait_for(lambda: not _UNDER_WAY and not _RAISING, timeout)


def under_way() -> int:
    """The number of kernels that are still to be built."""
    with _CHANGED:
        return len(_UNDER_WAY)


def _current() -> _Compiled | None:
    """The function that is being compiled, or to which the backward pass belongs; None if there is none."""
    compile_id = CompileContext.current_compile_id()
    compiled = _Compiled(f"ready_{next(_NUMBERS)}")
    globals()[compiled.flag] = False
    with _CHANGED:
        if compile_id is not None and _guard(compiled.flag):
            _LAST[compile_id] = compiled
        return _LAST.get(compile_id)


def _guard(flag: str) -> bool:
    """Adds a guard on a global of this module to what TorchDynamo compiles in this thread, if it does."""
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        translator = InstructionTranslator.current_tx()
    except AttributeError:  # it never compiled anything in this thread
        return False
    if translator is None:
        return False
    install_guard(
        AttrSource(translator.import_source(__name__), flag).make_guard(GuardBuilder.CONSTANT_MATCH)
    )
    return True


def _work() -> None:
    global _THREADS
    while True:
        with _CHANGED:
            if not _QUEUE:
                _THREADS -= 1
                return
            task = _QUEUE.popleft()
        began = time.monotonic()
        failure = _failure(task)
        if failure is None:
            _LOGGER.info("%s: built in the background in %.1f s", task.name, time.monotonic() - began)
        _end(task.name, failure)


def _failure(task: Task[Any]) -> str | None:
    """Runs a build.  Why it failed, which is counted; None if it did not."""
    try:
        task.run(_ignore)
    except ComFuseError as e:
        reason = str(e)
    except Exception as e:  # a bug, of which the thread must not die: others wait for it
        reason = f"{type(e).__name__}: {e}"
    else:
        return None
    try:
        fallbacks.record("torch.compile", reason)
    except FallbackError:
        _LOGGER.error("%s", reason)  # under COMFUSE_STRICT=1; nobody here could catch it
    return reason


def _end(name: str, failure: str | None) -> None:
    global _RAISING
    with _CHANGED:
        _UNDER_WAY.discard(name)
        if failure is not None:
            _FAILED[name] = failure
        for compiled in _WAITING:
            if name in compiled.waits:
                compiled.waits.discard(name)
                compiled.gained |= failure is None or name in compiled.replaceable
                if not compiled.waits and compiled.gained:
                    _RAISING += 1
                    threading.Thread(target=_raise, args=(compiled.flag,), daemon=True).start()
        _WAITING[:] = [compiled for compiled in _WAITING if compiled.waits]
        _CHANGED.notify_all()


def _raise(flag: str) -> None:
    """Raises a flag as soon as TorchDynamo is not compiling: a guard expects the value at the end of that."""
    global _RAISING
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock, _CHANGED:
        setattr(sys.modules[__name__], flag, True)
        _RAISING -= 1
        _CHANGED.notify_all()


def _ignore(event: BuildEvent) -> None:
    pass
