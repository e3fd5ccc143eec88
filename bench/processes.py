"""Runs measuring processes one after the other, and outlives their failures.

A kernel that traps takes the CUDA context of its process with it.  The workload it was on is then
recorded as failed, and a new process goes on with the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from bench.environment import ROOT
from bench.report import Row, record

# Between two lines of a worker: one provider may compile and tune for long in the first process.
SILENCE_SECONDS = 240.0


def run_process(
    names: Sequence[str],
    provider_names: Sequence[str],
    process: int,
    rounds: int,
    log: Path,
    on_record: Callable[[dict[str, Any]], None],
    silence_seconds: float = SILENCE_SECONDS,
    worker_module: Sequence[str] = ("bench.worker",),
) -> None:
    """Measure these workloads, each once, in as few fresh processes as their failures allow.

    ``on_record`` gets each record of the results file as it comes.  ``worker_module`` is the module that a
    process runs, and further arguments of it.
    """
    left = list(names)
    while left:
        worker = _Worker(left, provider_names, process, rounds, log, worker_module)
        current: str | None = None
        reason = None
        try:
            while (line := worker.next_line(silence_seconds)) is not None:
                if line["record"] == "begin":
                    if current is not None:
                        left.remove(current)
                    current = line["workload"]
                else:
                    on_record(line)
            reason = worker.failure()
        except TimeoutError:
            reason = f"no result within {silence_seconds:.0f} s; the process was stopped"
        finally:
            worker.stop()
        if reason is None:
            return
        failed = current if current is not None else left[0]
        on_record(record(Row(failed, "all", process, failure=f"{reason} (see {log.name})")))
        left.remove(failed)


class _Worker:
    """A running `python -m bench.worker`, in its own process group so that its helpers end with it."""

    def __init__(
        self,
        names: Sequence[str],
        provider_names: Sequence[str],
        process: int,
        rounds: int,
        log: Path,
        module: Sequence[str],
    ) -> None:
        command = [sys.executable, "-m", *module, "--workloads", *names]
        command += ["--providers", *provider_names, "--process", str(process), "--rounds", str(rounds)]
        self._log = log.open("a")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._pump, args=(self._process.stdout,), daemon=True).start()

    def _pump(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put(None)

    def next_line(self, timeout: float) -> dict[str, Any] | None:
        """The next record, None at the end.

        Raises:
            TimeoutError: nothing came in that time.
        """
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        return None if line is None else json.loads(line)

    def failure(self) -> str | None:
        """How the process failed, None if it did not."""
        try:
            code = self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            return "the process did not end"
        return None if code == 0 else f"the process ended with code {code}: {self._last_error()}"

    def _last_error(self) -> str:
        """The last line of the log that names an error: what the process most likely died of."""
        lines = Path(self._log.name).read_text(errors="replace").splitlines()
        errors = [line.strip() for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return errors[-1][:200] if errors else "no message"

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
