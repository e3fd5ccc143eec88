"""`python -m bench.compile_time`: what one kernel of each family costs to build from nothing.

Each is built alone, in an empty cache, by the ordinary build with two processors; nvcc says where its part
went (``--time``).  Beside the seconds stand those of the processors, which other work beside it does not
lengthen as much.  Needs nvcc and no GPU.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench import compile_sources, report
from bench.environment import ROOT, header
from comfuse.build import Source, build
from comfuse.errors import BuildError

PROCESSORS = 2
_DEVICE_PHASES = ("cicc", "ptxas")  # of nvcc; what remains deals with the host's code


def chosen(names: Sequence[str], every: bool) -> list[tuple[str, Source]]:
    """The first kernel of each name, or all of them, each with the name.

    Raises:
        ValueError: a name stands for no kernels.
    """
    found = [(name, compile_sources.kernels(name)) for name in names]
    return [(name, source) for name, sources in found for source in (sources if every else sources[:1])]


def measure(family: str, source: Source) -> dict[str, Any]:
    """Seconds of a cold build, and of the processors in it; of these, nvcc's parts.

    What remains is torch's build tool and the linker.
    """
    row: dict[str, Any] = {"record": "build", "family": family, "kernel": source.name}
    with tempfile.TemporaryDirectory(prefix="comfuse-bench-") as folder:
        phases = Path(folder, "phases.csv")
        os.environ["COMFUSE_CACHE_DIR"] = folder
        os.environ["NVCC_APPEND_FLAGS"] = f"--time={phases}"
        begin, before = time.perf_counter(), _processor_seconds()
        try:
            built = build(source)
        except BuildError as e:
            return {**row, "failure": str(e).splitlines()[0]}
        row["seconds"] = time.perf_counter() - begin
        row["processor_seconds"] = _processor_seconds() - before
        facts = built.info["ptxas"]
        return {**row, "registers": facts["registers"], "spill_bytes": facts["spill_bytes"], **parts(phases)}


def _processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def is_slow(row: dict[str, Any]) -> bool:
    """Whether a build misses its goal; one that failed has no time."""
    return bool(row.get("seconds", 0.0) > compile_sources.goal_seconds(row["kernel"]))


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
        own = f"{row['processor_seconds']:.1f}" if "processor_seconds" in row else "-"
        facts = [row.get("registers"), row.get("spill_bytes")]
        body.append([row["family"], row["kernel"], total, own, *parts, *facts])
    head = [
        "family",
        "kernel",
        "seconds",
        "of processors",
        *_DEVICE_PHASES,
        "host",
        "registers",
        "spill bytes",
    ]
    return tabulate(body, head, tablefmt="github", disable_numparse=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compile_time", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        default=list(compile_sources.families()),
        metavar="NAME",
        help=f"{', '.join(compile_sources.families())}; a step of a model, such as bert_large-training; "
        "a catalogue; an emitted .cu, such as those of tests/golden; default: all families",
    )
    parser.add_argument("--every", action="store_true", help="all kernels of a name, not its first alone")
    parser.add_argument("--note", help="goes into the header: what ran beside it")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    options = parser.parse_args(arguments)
    try:
        wanted = chosen(options.names, options.every)
    except ValueError as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    noted = {} if options.note is None else {"note": options.note}
    results = report.Results(options.output, header("compile_time", **noted))
    rows = []
    for family, source in wanted:
        rows.append(measure(family, source))
        results.add(rows[-1])
    print(f"{table(rows)}\nrows: {results.path}")
    for row in filter(is_slow, rows):
        goal = compile_sources.goal_seconds(row["kernel"])
        print(f"MISSED: {row['kernel']} took {row['seconds']:.1f} s, the goal is {goal:g} s")
    return 1 if any("failure" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
