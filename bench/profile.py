"""`python -m bench.profile`: what Nsight Compute's counters say of one launch of each workload.

Under the profiler a kernel runs alone and cold, far below the power cap: where it takes the cycles that it
takes in the bench, the cap is not what limits it there.  Needs ncu and permission to read counters.

Kernels whose tiles wait for each other end in an illegal instruction under ncu (bench/NOTES.md, section 7),
whether it repeats the kernel or the whole program; `python -m bench.timeline` shows where their time goes.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench import providers, report, workloads
from bench.environment import ROOT, header

#: Counters by the heading of their column.
COUNTERS = {
    "us": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "tensor %": "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active",
    "tensor busy %": "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active",
    "issue %": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "ALU %": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "FMA %": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "XU %": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "shared %": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "L1 data banks %": "l1tex__data_bank_reads.avg.pct_of_peak_sustained_elapsed",
    "L2 %": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "DRAM %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "instructions": "sm__inst_executed.sum",
}
#: Why warps did not issue: the counters say how many, of a scheduler's, in a clock in which one does.
_REASONS = (
    "wait", "math_pipe_throttle", "gmma", "long_scoreboard", "short_scoreboard", "barrier", "membar",
    "mio_throttle", "lg_throttle", "dispatch_stall", "not_selected", "selected", "no_instruction",
    "branch_resolve", "sleeping", "misc",
)  # fmt: skip
STALLS = {
    r.replace("_", " "): f"smsp__average_warps_issue_stalled_{r}_per_issue_active.ratio" for r in _REASONS
}
_ALL = COUNTERS | STALLS


def child(name: str, provider: str) -> None:
    """Warms up, then makes one call that the profiler sees."""
    import torch

    from bench.programs import make_inputs

    w = workloads.by_name(name)
    call = providers.PROVIDERS[provider].prepare(w, make_inputs(w, seed=1))
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def known() -> set[str]:
    """The counters that ncu has for Hopper, without their last part: an unknown one would fail the run."""
    done = subprocess.run(
        ["ncu", "--query-metrics", "--chip", "gh100"], capture_output=True, text=True, timeout=60, check=True
    )
    return {line.split()[0] for line in done.stdout.splitlines() if "__" in line}


def profiled(name: str, provider: str, counters: list[str]) -> list[dict[str, Any]]:
    """A record for each kernel of the call.

    Raises:
        RuntimeError: ncu failed; the message ends with what it said.
    """
    command = ["ncu", "--csv", "--page", "raw", "--profile-from-start", "off", "--clock-control", "none"]
    command += ["--metrics", ",".join(counters)]
    command += [sys.executable, "-m", "bench.profile", "--child", name, provider]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    records = kernels(done.stdout)
    if done.returncode != 0 or not records:
        said = [x for x in (done.stdout + done.stderr).splitlines() if not x.startswith('"')]
        raise RuntimeError(f"ncu returned {done.returncode}: " + "\n".join(said[-8:]))
    return [{"record": "kernel", "workload": name, "provider": provider, **r} for r in records]


def kernels(output: str) -> list[dict[str, Any]]:
    """The kernels in ncu's table of raw values; a counter that this GPU has not is left out.

    The second line of the table holds units, of which time's alone is not fixed.
    """
    lines = [line for line in output.splitlines() if line.startswith('"')]
    units, *rows = csv.DictReader(io.StringIO("\n".join(lines))) if lines else [{}]
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    records = []
    for row in rows:
        values: dict[str, Any] = {"kernel": row["Kernel Name"].split("(")[0]}
        for heading, counter in _ALL.items():
            try:
                value = float(row.get(counter, "").replace(",", ""))
            except ValueError:
                continue
            values[heading] = value * scale[units[counter]] if heading == "us" else value
        records.append(values)
    return records


def table(records: list[dict[str, Any]], headings: Iterable[str] = COUNTERS, digits: int = 1) -> str:
    body = []
    for r in records:
        cells = [f"{r[heading]:,.{digits}f}" if heading in r else "-" for heading in headings]
        body.append([r["workload"], r["provider"], r["kernel"][:40], *cells])
    return tabulate(
        body, ["workload", "provider", "kernel", *headings], tablefmt="github", disable_numparse=True
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="NAME", help="e.g. graphs-rmsnorm-8192x4096x4096")
    parser.add_argument(
        "--providers", nargs="+", default=["mm", "comfuse"], choices=list(providers.PROVIDERS)
    )
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    available = known()
    counters = [counter for counter in _ALL.values() if counter.split(".")[0] in available]
    results = report.Results(options.output, header("profile"))
    records, failed = [], 0
    for name, provider in itertools.product(options.workloads, options.providers):
        try:
            new = profiled(name, provider, counters)
        except (RuntimeError, subprocess.TimeoutExpired) as e:
            print(f"{name} {provider}: {e}", file=sys.stderr)
            failed += 1
            continue
        report.write(results.path, new)
        records += new
    print(f"{table(records)}\n\n{table(records, STALLS, 2)}\nrows: {results.path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
