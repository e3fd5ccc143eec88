"""What the planner knows of each GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from comfuse.generator.errors import PlanError
from comfuse.generator.plan.constants import Constants

RATES = ("flops", "bandwidth")  # of a GPU, that :meth:`Gpu.calibrated` takes


@dataclass(frozen=True)
class Gpu:
    """Rates are what programs reach, not what data sheets promise."""

    name: str
    processors: int  # SMs, each holding one CTA of ours
    shared_bytes: int  # most that one CTA can have
    flops: float  # dense bf16 or fp16, a second
    bandwidth: float  # global memory, bytes a second
    l2_bandwidth: float  # L2 to SMs, bytes a second
    clock: float  # Hz, for what is counted in cycles
    constants: Constants = field(default_factory=Constants)  # of the cost model

    def calibrated(self, values: Mapping[str, float]) -> Gpu:
        """This GPU with rates (:data:`RATES`) and constants as they were measured on it.

        Raises:
            PlanError: a name is of neither, or a value is no positive number.
        """
        for name in RATES:
            if not 0 < values.get(name, 1.0) < float("inf"):
                raise PlanError(f"{name} is {values[name]}; allowed: positive numbers")
        rest = {name: value for name, value in values.items() if name not in RATES}
        return replace(
            self,
            flops=values.get("flops", self.flops),
            bandwidth=values.get("bandwidth", self.bandwidth),
            constants=self.constants.with_values(rest),
        )

    def calibration(self) -> dict[str, float]:
        """Everything that :meth:`calibrated` takes, by name."""
        return {name: getattr(self, name) for name in RATES} | self.constants.values()


GPUS: dict[str, Gpu] = {
    # Measured: copy 4.27 TB/s, bf16 8192^3 788 TFLOP/s.
    "h200": Gpu("h200", 132, 232448, 788e12, 4.27e12, 12.5e12, 1.755e9),
    # The same chip with slower memory; bandwidth scaled by the data sheets' 3.35 / 4.8.
    "h100": Gpu("h100", 132, 232448, 788e12, 2.98e12, 12.5e12, 1.755e9),
}


def find(gpu: str | Gpu) -> Gpu:
    """The GPU of this name; ``"h100:114"`` is one with 114 SMs, a smaller model or a partition of it.

    One that is no name, such as a calibrated one, is itself.

    Raises:
        PlanError: it is not in the table, or has no SMs.
    """
    if isinstance(gpu, Gpu):
        return gpu
    known, colon, count = gpu.partition(":")
    if known not in GPUS:
        raise PlanError(f"unknown GPU {gpu!r}, known: {', '.join(GPUS)}")
    whole = GPUS[known]
    if not colon:
        return whole
    if not count.isdecimal() or int(count) == 0:
        raise PlanError(f"GPU {gpu!r}: a number of SMs has to follow the colon, such as {known}:114")
    share = int(count) / whole.processors
    return replace(
        whole,
        name=gpu,
        processors=int(count),
        flops=whole.flops * share,
        l2_bandwidth=whole.l2_bandwidth * share,
    )
