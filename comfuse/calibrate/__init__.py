"""Measures the cost model's constants on a GPU: ``comfuse calibrate``.

Some fifty launches of small kernels (:mod:`comfuse.calibrate.probe`), each sensitive to a few constants, are
timed (:mod:`comfuse.calibrate.on_gpu`), and the constants with which the model comes nearest to all of them
are found (:mod:`comfuse.calibrate.least_squares`).  What was found is kept by :mod:`comfuse.calibration`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from statistics import median
from typing import Protocol

from comfuse.calibrate.least_squares import solve
from comfuse.calibrate.probe import Probe, probes
from comfuse.calibration import Calibration
from comfuse.errors import CalibrationError
from comfuse.generator.plan.constants import CHAINS
from comfuse.generator.plan.gpus import Gpu, find
from comfuse.version import __version__

__all__ = ["Probe", "Timer", "calibrate", "probes"]


class Timer(Protocol):
    """What measures on one GPU."""

    def flops(self) -> float:
        """Of a long GEMM of a library, a second."""
        ...

    def bandwidth(self) -> float:
        """Of a large copy, bytes read and written a second."""
        ...

    def times(self, wanted: Sequence[Probe]) -> list[float | None]:
        """Microseconds of each launch; None where its kernel cannot be had."""
        ...


def calibrate(
    gpu: str, timer: Timer, *, device: str = "", say: Callable[[str], object] = lambda line: None
) -> Calibration:
    """Measures a GPU.

    Args:
        gpu: the planner's name of it.
        timer: measures on it.
        device: the name that CUDA gives it.
        say: gets a line now and then.

    Raises:
        CalibrationError: too few kernels could be timed.
    """
    own = find(gpu)
    rates = {"flops": timer.flops(), "bandwidth": timer.bandwidth()}
    say(f"long GEMM {rates['flops'] / 1e12:.0f} TFLOP/s, copy {rates['bandwidth'] / 1e12:.2f} TB/s")
    base = own.calibrated(rates)
    wanted = probes(own)
    timed = [(p, us) for p, us in zip(wanted, timer.times(wanted), strict=True) if us is not None]
    if 2 * len(timed) < len(wanted):
        raise CalibrationError(
            f"{len(timed)} of {len(wanted)} kernels could be timed, at least half are needed"
        )
    names = [
        name for name in base.constants.values() if not name.startswith(CHAINS)
    ]  # no probe has two GEMMs
    values = solve(base, timed, names)
    found = own.calibrated(rates | values)
    say(f"{len(timed)} launches timed")
    return Calibration(
        gpu=gpu,
        device=device,
        comfuse=__version__,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        values=rates | values,
        error_before=_error(own, timed),
        error=_error(found, timed),
    )


def _error(gpu: Gpu, timed: Sequence[tuple[Probe, float]]) -> float:
    """Median, predicted against measured."""
    return median(abs(probe.predicted_us(gpu) / us - 1) for probe, us in timed)
