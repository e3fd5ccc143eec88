"""Builds side by side, and what they show meanwhile: with tasks that compile nothing."""

from __future__ import annotations

import io
import signal
import threading
import time

import pytest

from comfuse.build.parallel import Task, run_all
from comfuse.build.progress import BuildEvent, Display, Progress
from comfuse.errors import ToolchainError


def test_an_interrupt_ends_builds_under_way_and_those_behind_them() -> None:
    ended, begun = [], []

    def run(name: str, progress: Progress) -> None:
        begun.append(name)
        try:
            while True:
                progress(BuildEvent(name, "compiling", 0.0))
                time.sleep(0.005)
        finally:
            ended.append(name)

    tasks = [Task(name, lambda p, name=name: run(name, p)) for name in "abc"]
    timer = threading.Timer(0.1, _interrupt_main)
    # A process in the background ignores Ctrl-C from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run_all(tasks, jobs=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(begun) == ["a", "b"]
    assert sorted(ended) == ["a", "b"]


def _interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_errors_of_ours_are_results_and_others_are_raised() -> None:
    error = ToolchainError("nvcc", (), "install it")

    def fail(progress: Progress) -> int:
        raise error

    def crash(progress: Progress) -> int:
        raise ZeroDivisionError

    assert run_all([Task("a", fail), Task("b", lambda p: 1)], jobs=1) == [error, 1]
    with pytest.raises(ZeroDivisionError):
        run_all([Task("a", crash)], jobs=1)


def test_the_display_says_how_far_and_how_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "comfuse")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = 0.0
    terminal = Terminal()
    with Display(["a", "b", "c"], 2, stream=terminal, clock=lambda: now) as display:
        assert display.text() == "comfuse: building 3 kernels, 2 at a time: 0 done, about 15 s left"
        display(BuildEvent("a", "compiling", 4.0))
        now = 1.0
        display(BuildEvent("b", "compiling", 4.0))
        assert display.seconds_left() == pytest.approx((6 + 6 + 10) / 2)
        now = 2.0
        display(BuildEvent("a", "done", 6.0))
        assert display.seconds_left() == pytest.approx((2 + 6) / 2)  # b has 2 s to go, c takes 6
        now = 3.0
        display(BuildEvent("b", "done", 6.0))
        display(BuildEvent("c", "cached", 0.0))
        assert display.seconds_left() == 0
    shown = terminal.getvalue()
    assert "1 done, about 4 s left" in shown
    assert "3 built, after 3 s" in caplog.text
    assert shown.endswith("\r\x1b[2K")


def test_the_display_says_how_far_it_is_where_there_is_no_terminal() -> None:
    now = 0.0
    said: list[str] = []
    names, clock = ["a", "b"], lambda: now
    with Display(names, 1, what="pack", expected=30, say=said.append, stream=io.StringIO(), clock=clock) as d:
        for now in (1.0, 9.0, 11.0, 12.0, 22.0):
            d(BuildEvent("a", "compiling", now))
    assert said == [
        "comfuse: building 2 packs, 1 at a time: 0 done, about 60 s left",
        "comfuse: building 2 packs, 1 at a time: 0 done, about 49 s left",
        "comfuse: building 2 packs, 1 at a time: 0 done, about 38 s left",
        "0 built, after 22 s",
    ]


def test_the_display_writes_no_line_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with Display(["a"], 1, stream=stream) as display:
        display(BuildEvent("a", "done", 1.0))
    assert stream.getvalue() == ""
