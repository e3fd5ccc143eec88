"""The header of every results file: what the numbers were measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_GPU_FIELDS = (
    "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,"
    "power.draw,power.limit,temperature.gpu,memory.total"
)


def _output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str:
    """The commit that is measured: COMFUSE_COMMIT where it is set, else git's, with a "+" if it was edited.

    Results are output, not source: their own files do not make a tree an edited one.
    """
    named = os.environ.get("COMFUSE_COMMIT")
    if named:
        return named
    head = _output("git", "rev-parse", "HEAD")
    if head is None:
        return "unknown"
    edited = _output("git", "status", "--porcelain", "--untracked-files=no", "--", ":!bench/results")
    return head + ("+" if edited else "")


def gpu() -> dict[str, str]:
    """What nvidia-smi says of the first GPU that this process may use; empty without one."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    line = _output("nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader", f"--id={first}")
    if not line:
        return {}
    return dict(zip(_GPU_FIELDS.split(","), (f.strip() for f in line.split(",")), strict=False))


def header(experiment: str, **settings: Any) -> dict[str, Any]:
    """The first record of a results file."""
    return {
        "record": "header",
        "experiment": experiment,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "gpu": gpu(),
        "torch": _version("torch"),
        "triton": _version("triton"),
        "cutlass": _version("nvidia-cutlass"),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        **settings,
    }
