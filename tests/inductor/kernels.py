"""Kernels that nobody compiles, for tests of what becomes of regions whose kernels are not built yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from comfuse import fallbacks
from comfuse.build.parallel import Task
from comfuse.build.progress import BuildEvent, Progress
from comfuse.errors import ComFuseError
from comfuse.inductor import background, jit
from comfuse.inductor.candidate import Found


class Kernels:
    """Stands for the cache and the compiler: what is built, and how long or how badly a build goes."""

    def __init__(self) -> None:
        self.names = ["one", "two"]
        self.names_of: Callable[[Found], list[str]] = lambda region: self.names
        self.built: set[str] = set()
        self.begun: list[str] = []
        self.errors: dict[str, ComFuseError] = {}
        self.gate = threading.Event()  # builds do not end before it is set
        self.gate.set()

    def tasks_of(self, region: Found) -> dict[str, Task[Any] | None]:
        names = self.names_of(region)
        return {n: None if n in self.built else Task(n, lambda p, n=n: self._build(n, p)) for n in names}

    def _build(self, name: str, progress: Progress) -> None:
        self.begun.append(name)
        began = time.monotonic()
        while not self.gate.wait(0.005):
            progress(BuildEvent(name, "compiling", time.monotonic() - began))
        if name in self.errors:
            progress(BuildEvent(name, "failed", time.monotonic() - began))
            raise self.errors[name]
        self.built.add(name)
        progress(BuildEvent(name, "done", time.monotonic() - began))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Every region is on a GPU, and its kernels are those of the fake."""
    fake = Kernels()
    monkeypatch.setattr(jit, "runs_on_gpu", lambda region: True)
    monkeypatch.setattr(jit, "tasks_of", fake.tasks_of)
    monkeypatch.setattr(jit, "_unregistered", lambda region: "")
    monkeypatch.setattr(background, "_FAILED", {})
    monkeypatch.setattr(jit, "_REFUSED", {})
    fallbacks.reset()
    yield fake
    fake.gate.set()
    assert background.wait(10)
    fallbacks.reset()
