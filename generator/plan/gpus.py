"""What the planner knows of each GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from comfuse.generator.errors import PlanError


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


GPUS: dict[str, Gpu] = {
    # Measured: copy 4.27 TB/s, bf16 8192^3 788 TFLOP/s.
    "h200": Gpu("h200", 132, 232448, 788e12, 4.27e12, 12.5e12, 1.755e9),
    # The same chip with slower memory; bandwidth scaled by the data sheets' 3.35 / 4.8.
    "h100": Gpu("h100", 132, 232448, 788e12, 2.98e12, 12.5e12, 1.755e9),
}


def find(name: str) -> Gpu:
    """The GPU of this name; ``"h100:114"`` is one with 114 SMs, a smaller model or a partition of it.

    Raises:
        PlanError: it is not in the table, or has no SMs.
    """
    known, colon, count = name.partition(":")
    if known not in GPUS:
        raise PlanError(f"unknown GPU {name!r}, known: {', '.join(GPUS)}")
    gpu = GPUS[known]
    if not colon:
        return gpu
    if not count.isdecimal() or int(count) == 0:
        raise PlanError(f"GPU {name!r}: a number of SMs has to follow the colon, such as {known}:114")
    share = int(count) / gpu.processors
    return replace(
        gpu,
        name=name,
        processors=int(count),
        flops=gpu.flops * share,
        l2_bandwidth=gpu.l2_bandwidth * share,
    )
