"""The clock of the SMs while something runs, from their own counters.

A GPU at its power limit lowers the clock, so that work that overlaps perfectly still adds its energy to the
time.  nvidia-smi's figure is too slow to see that in a burst of milliseconds.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from comfuse.build import build

_SOURCE = Path(__file__).resolve().parent / "kernels" / "sm_clock.cu"


@dataclass(frozen=True)
class _Source:
    """What :func:`comfuse.build.build` takes."""

    name: str
    text: str
    plan: None = None


def source() -> _Source:
    """The kernel that reads the counters."""
    return _Source("cf_bench_sm_clock", _SOURCE.read_text())


class SmClock:
    """Watches stretches of work on the current CUDA device, each under a name.

    Raises:
        BuildError, ToolchainError: the kernel that reads the counters cannot be built.
    """

    def __init__(self) -> None:
        self._read = ctypes.CDLL(str(build(source()).path)).sm_clock_read
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        self._sms = torch.cuda.get_device_properties().multi_processor_count
        self._readings: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    @contextmanager
    def watch(self, name: str) -> Iterator[None]:
        """Reads the counters before and behind what is put on the current stream."""
        before = self._reading()
        yield
        self._readings[name].append((before, self._reading()))

    def mhz(self, name: str) -> float | None:
        """The median over all stretches of that name; None where there was none.  Waits for the device."""
        found = [clock for pair in self._readings[name] if (clock := between(*pair)) is not None]
        return median(found) if found else None

    def _reading(self) -> Tensor:
        reading = torch.zeros(self._sms, 2, dtype=torch.int64, device="cuda")
        code = self._read(reading.data_ptr(), self._sms, torch.cuda.current_stream().cuda_stream)
        if code:
            raise RuntimeError(f"sm_clock_read returned CUDA error {code}")
        return reading


def between(before: Tensor, behind: Tensor) -> float | None:
    """MHz from two readings: int64 (SMs, 2), cycles and nanoseconds, zeros where an SM was not read.

    The median over the SMs that both have.
    """
    both = ((before != 0) & (behind != 0)).all(dim=1)
    cycles, nanoseconds = (behind - before)[both].double().cpu().unbind(dim=1)
    return float((cycles / nanoseconds).median()) * 1000.0 if len(cycles) else None
