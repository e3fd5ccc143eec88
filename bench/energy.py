"""`python -m bench.energy`: what each launch of a workload costs in joules, and the clock that this leaves.

A GPU at its power limit lowers the clock until the work fits: then a launch takes its energy over the limit,
and to hide a wait gains nothing, as what the wait saved in power had paid for clock.  Each provider runs
alone for a while without rests, as NVML counts energy in steps of some tens of milliseconds; so the clocks
are lower than in the other benches, which rest between graphs.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench import providers, report, workloads
from bench.environment import ROOT, header

SECONDS = 1.0  # that are measured of each provider
WARM_UP_SECONDS = 0.5
_MOST_POLLS = 1000  # of the energy counter, some 2 ms each, until it has to have gone on
_LIMITS = {"power cap": "nvmlClocksEventReasonSwPowerCap", "heat": "nvmlClocksEventReasonSwThermalSlowdown"}


@dataclass(frozen=True)
class Cost:
    """Of one launch: time in us, energy in mJ; the mean power in W and the SMs' clock in MHz meanwhile.

    ``limits``: what NVML gave as the reason for a lower clock, at any time.
    """

    us: float
    mj: float
    watts: float
    mhz: float | None
    limits: tuple[str, ...]


class Meter:
    """NVML's counters of the current CUDA device.

    Raises:
        ImportError: nvidia-ml-py is not installed; it comes with the extra "bench".
    """

    def __init__(self) -> None:
        import pynvml
        import torch

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")

    def millijoules(self) -> int:
        """Since the driver was loaded."""
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device))

    def limits(self) -> set[str]:
        """What keeps the clock down right now."""
        bits = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._device)
        return {name for name, constant in _LIMITS.items() if bits & getattr(self._nvml, constant)}

    def of(self, captured: Any, launches: int, seconds: float) -> Cost:
        """Replays a graph of so many launches for so long."""
        import torch

        from bench.clock import SmClock

        clock = SmClock()
        _replay(captured, WARM_UP_SECONDS)
        found: set[str] = set()
        first, first_seconds = self._step(captured)
        torch.cuda.synchronize()
        begin, replays = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            with clock.watch("all"):
                replays += _replay(captured, 0.05)
            found |= self.limits()
        torch.cuda.synchronize()
        us = 1e6 * (time.perf_counter() - begin) / (replays * launches)
        last, last_seconds = self._step(captured)
        watts = (last - first) / 1000 / (last_seconds - first_seconds)
        return Cost(us, watts * us / 1000, watts, clock.mhz("all"), tuple(sorted(found)))

    def _step(self, captured: Any) -> tuple[int, float]:
        """Replays until the counter goes on, which it does in steps: what it shows then, and when."""
        before = self.millijoules()
        for _ in range(_MOST_POLLS):
            _replay(captured, 0.002)
            if (now := self.millijoules()) != before:
                return now, time.perf_counter()
        raise RuntimeError(f"NVML's energy counter stays at {before} mJ while the GPU is busy")


def _replay(captured: Any, seconds: float) -> int:
    """Keeps the GPU busy for about so long, and gives the number of replays; a few are still under way."""
    import torch

    begin, replays, events = time.perf_counter(), 0, []
    while time.perf_counter() - begin < seconds:
        captured.replay()
        events.append(torch.cuda.Event())
        events[-1].record()
        replays += 1
        if replays > 4:
            events[-4].synchronize()
    return replays


def measure(name: str, chosen: list[providers.Provider]) -> list[dict[str, Any]]:
    """A record for each provider of one workload, in that order."""
    from bench.programs import make_inputs
    from comfuse import timing

    w = workloads.by_name(name)
    inputs = make_inputs(w, seed=1)
    meter = Meter()
    records = []
    for p in chosen:
        captured = timing.capture(p.prepare(w, inputs))
        cost = meter.of(captured, timing.LAUNCHES_PER_GRAPH, SECONDS)
        records.append({"record": "energy", "workload": name, "provider": p.name, **asdict(cost)})
    return records


def table(records: list[dict[str, Any]]) -> str:
    """Cycles are those of the clock, of one launch."""
    body = []
    for r in records:
        cycles = "-" if r["mhz"] is None else f"{r['us'] * r['mhz'] / 1000:,.0f}"
        numbers = [f"{r[key]:,.1f}" for key in ("us", "mj", "watts")]
        mhz = "-" if r["mhz"] is None else f"{r['mhz']:,.0f}"
        body.append([r["workload"], r["provider"], *numbers, mhz, cycles, ", ".join(r["limits"]) or "-"])
    headings = ["workload", "provider", "us", "mJ", "W", "MHz", "thousand cycles", "clock limited by"]
    return tabulate(body, headings, tablefmt="github", disable_numparse=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.energy", description=__doc__)
    parser.add_argument("workloads", nargs="+", metavar="NAME", help="e.g. graphs-rmsnorm-8192x4096x4096")
    parser.add_argument(
        "--providers",
        nargs="+",
        default=["mm", "inductor", "comfuse"],
        metavar="NAME",
        help="as in python -m bench; a plan's name may end with its stages: cooperative-128x256-c2-s3",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    options = parser.parse_args()
    chosen = [providers.by_name(name) for name in options.providers]
    results = report.Results(options.output, header("energy"))
    records = []
    for name in options.workloads:
        found = measure(name, chosen)
        report.write(results.path, found)
        records += found
    print(table(records))
    print(f"rows: {results.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
