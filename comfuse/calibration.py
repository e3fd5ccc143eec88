"""GPUs as they are planned for on this machine: by what ``comfuse calibrate`` measured, if it did."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from comfuse import settings
from comfuse.build.files import write_whole
from comfuse.errors import CalibrationError, PlanError
from comfuse.generator.plan.gpus import Gpu, find

FORMAT = 1
_AGAIN = "run `comfuse calibrate` again, or delete the file"


@dataclass(frozen=True)
class Calibration:
    """What was measured of one GPU.

    Attributes:
        gpu: the planner's name of it, with its number of SMs ("h200", "h100:114").
        device: the name that CUDA gives it.
        comfuse: the version that measured.
        date: when, in ISO 8601.
        values: rates and constants, by name, as :meth:`Gpu.calibrated` takes them.
        error_before, error: medians over the measured kernels, predicted against measured, with the planner's
            own constants and with these; shares.
    """

    gpu: str
    device: str
    comfuse: str
    date: str
    values: dict[str, float]
    error_before: float
    error: float

    def apply(self) -> Gpu:
        """The GPU with these values.  Raises PlanError: one of them is none of the cost model's."""
        return find(self.gpu).calibrated(self.values)

    def changed(self) -> dict[str, tuple[float, float]]:
        """Own and measured value of everything that differs by more than 1 %, by name."""
        own, measured = find(self.gpu).calibration(), self.apply().calibration()
        return {n: (own[n], v) for n, v in measured.items() if abs(v - own[n]) > 0.01 * own[n]}


def path(gpu: str) -> Path:
    """The file of a GPU, by the planner's name."""
    return settings.calibration() / f"{gpu.replace(':', '-')}.json"


def gpu(name: str) -> Gpu:
    """What to plan with for the GPU of this name.

    Raises:
        PlanError: the planner knows no such GPU.
        CalibrationError: there is a calibration of it that cannot be read.
    """
    found = read(name)
    return find(name) if found is None else found.apply()


def read(name: str) -> Calibration | None:
    """The calibration of the GPU of this name, if there is one.  Read again when the file changes.

    Raises:
        CalibrationError: it cannot be read.
    """
    file = path(name)
    try:
        stat = file.stat()
    except OSError:
        return None
    return _read(file, name, stat.st_mtime_ns, stat.st_size)


def write(made: Calibration) -> Path:
    """Keeps a calibration for all later processes; its file.

    Raises:
        CalibrationError: it cannot be written.
    """
    file = path(made.gpu)
    try:
        write_whole(file, json.dumps({"format": FORMAT, **asdict(made)}, indent=1) + "\n")
    except OSError as e:
        raise CalibrationError(f"cannot write {file}: {e}; COMFUSE_CALIBRATION names another folder") from e
    return file


@lru_cache(maxsize=16)
def _read(file: Path, name: str, changed: int, size: int) -> Calibration:
    try:
        fields = json.loads(file.read_text())
        form = fields.pop("format", None)
        if form != FORMAT:
            raise CalibrationError(f"{file}: format {form}, this ComFuse reads {FORMAT}; {_AGAIN}")
        found = Calibration(**fields)
        if found.gpu != name:
            raise CalibrationError(f"{file} is of the GPU {found.gpu}, not {name}; {_AGAIN}")
        found.apply()
        for error in ("error_before", "error"):
            if not isinstance(getattr(found, error), int | float):
                raise ValueError(f"{error} is {getattr(found, error)!r}; allowed: a number")
    except (OSError, ValueError, TypeError, AttributeError, PlanError) as e:
        if isinstance(e, CalibrationError):
            raise
        raise CalibrationError(f"{file}: {e}; {_AGAIN}") from e
    return found
