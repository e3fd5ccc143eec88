"""`python -m bench.compile_time`: what one kernel of each family costs to build from nothing.

Each is built alone, in an empty cache, by the ordinary build with two processors; nvcc says where its part
went (``--time``).  Needs nvcc and no GPU.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench import providers, report, workloads
from bench.ahead import sources_of
from bench.environment import ROOT, header
from comfuse.build import build
from comfuse.errors import BuildError
from comfuse.generator.emit import KernelSource

PROCESSORS = 2
GOAL_SECONDS = 10.0
_DEVICE_PHASES = ("cicc", "ptxas")  # of nvcc; what remains deals with the host's code


def kernels(families: list[str], every: bool) -> list[tuple[str, KernelSource]]:
    """A family's first kernel, or all of them, each with the family's name."""
    found = []
    for family in families:
        sources = sources_of([providers.PROVIDERS["comfuse"]], workloads.select(family))
        unique = list({source.name: source for source in sources}.values())
        found += [(family, source) for source in (unique if every else unique[:1])]
    return found


def measure(family: str, source: KernelSource) -> dict[str, Any]:
    """Seconds of a cold build; of these, nvcc's parts.  What remains is torch's build tool and the linker."""
    row: dict[str, Any] = {"record": "build", "family": family, "kernel": source.name}
    with tempfile.TemporaryDirectory(prefix="comfuse-bench-") as folder:
        phases = Path(folder, "phases.csv")
        os.environ["COMFUSE_CACHE_DIR"] = folder
        os.environ["NVCC_APPEND_FLAGS"] = f"--time={phases}"
        begin = time.perf_counter()
        try:
            built = build(source)
        except BuildError as e:
            return {**row, "failure": str(e).splitlines()[0]}
        row["seconds"] = time.perf_counter() - begin
        facts = built.info["ptxas"]
        return {**row, "registers": facts["registers"], "spill_bytes": facts["spill_bytes"], **parts(phases)}


def parts(phases: Path) -> dict[str, float]:
    """Seconds of nvcc's parts, from the table that ``--time`` writes."""
    seconds: dict[str, float] = defaultdict(float)
    with phases.open(newline="") as file:
        for line in csv.DictReader(file, skipinitialspace=True):
            values = {name.strip(): value.strip() for name, value in line.items() if name and value}
            phase = values["phase name"]
            seconds[phase if phase in _DEVICE_PHASES else "host"] += float(values["metric"]) / 1000.0
    return dict(seconds)


def table(rows: list[dict[str, Any]]) -> str:
    body = []
    for row in rows:
        parts = [f"{row[p]:.1f}" if p in row else "-" for p in (*_DEVICE_PHASES, "host")]
        total = f"{row['seconds']:.1f}" if "seconds" in row else row["failure"]
        body.append(
            [row["family"], row["kernel"], total, *parts, row.get("registers"), row.get("spill_bytes")]
        )
    head = ["family", "kernel", "seconds", *_DEVICE_PHASES, "host", "registers", "spill bytes"]
    return tabulate(body, head, tablefmt="github", disable_numparse=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compile_time", description=__doc__)
    parser.add_argument(
        "--families", nargs="+", choices=list(workloads.FAMILIES), default=list(workloads.FAMILIES)
    )
    parser.add_argument("--every", action="store_true", help="all kernels of a family, not its first alone")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    results = report.Results(options.output, header("compile_time"))
    rows = []
    for family, source in kernels(options.families, options.every):
        rows.append(measure(family, source))
        results.add(rows[-1])
    print(f"{table(rows)}\nrows: {results.path}")
    slow = [row["kernel"] for row in rows if row.get("seconds", 0.0) > GOAL_SECONDS]
    if slow:
        print(f"beyond {GOAL_SECONDS:g} s: {', '.join(slow)}")
    return 1 if any("failure" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
