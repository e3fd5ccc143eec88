"""`python -m bench pass-time`: what ComFuse's pass adds to a compile of torch's own.

Each step of a model is compiled twice in a process of its own, with caches off: cold, with all that a process
does once, and warm. Kernels are built by nobody, neither ours nor TorchInductor's, and the compiled step does
not run: what is left are TorchDynamo, AOTAutograd, and TorchInductor's passes, lowering and code.
Models have their published sizes on a GPU; without one, those for a CPU, whose C++ takes TorchInductor
longer to write than Triton.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tabulate import tabulate
from torch.fx import Graph

from bench import report
from bench.environment import ROOT, header
from bench.models import MODELS, Step
from bench.workloads.models import ModelWorkload, select_models
from comfuse.inductor.hook import FUSING, SAVING
from comfuse.inductor.policy import Policy
from comfuse.inductor.run import run
from comfuse.inductor.save import save_sums
from comfuse.inductor.verdict import Verdict

GOAL = 0.05  # of torch's own compile
STATES = ("cold", "warm")
CHILD_TIMEOUT = 400.0


class _Timed:
    """ComFuse's passes, without their builds of kernels."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.graphs: list[list[Verdict]] = []

    def fuse(self, graph: Graph) -> None:
        begin = time.perf_counter()
        self.graphs.append(run(graph, Policy(), build=False))
        self.seconds += time.perf_counter() - begin

    def save(self, graph: Graph) -> None:
        begin = time.perf_counter()
        save_sums(graph)
        self.seconds += time.perf_counter() - begin


class _Compiled(Exception):
    """Raised in the place of TorchInductor's first kernel."""


@contextlib.contextmanager
def _without_kernels() -> Iterator[None]:
    """TorchInductor writes its kernels and compiles none; the backward graph is compiled with the forward."""
    from torch._inductor.async_compile import AsyncCompile

    def kernel(*arguments: Any, **options: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            raise _Compiled

        return mock.Mock(side_effect=call, run=call)

    with (
        mock.patch.multiple(AsyncCompile, cpp_pybinding=kernel, triton=kernel),
        torch._inductor.config.patch({"force_disable_caches": True, "cpp.vec_isa_ok": True}),
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
    ):
        yield


def measure(w: ModelWorkload) -> dict[str, Any]:
    """The record of one workload, for a fresh process."""
    torch.backends.mha.set_fastpath_enabled(False)
    gpu = torch.cuda.is_available()
    model = MODELS[w.model]
    step = Step.of(
        model, model.real if gpu else model.small, training=w.training, device="cuda" if gpu else "cpu"
    )
    fields: dict[str, Any] = {"record": "pass-time", "workload": w.name, "size": "real" if gpu else "small"}
    for state in STATES:
        timed, seconds = _compile(step)
        fields[state] = {"pass_seconds": timed.seconds, "torch_seconds": seconds - timed.seconds}
    verdicts = [verdict for graph in timed.graphs for verdict in graph]
    return fields | {
        "graphs": len(timed.graphs),
        "gemms": len(verdicts),
        "fused": sum(verdict.fused for verdict in verdicts),
    }


def _compile(step: Step) -> tuple[_Timed, float]:
    timed = _Timed()
    torch._dynamo.reset()
    passes = {FUSING: timed.fuse, SAVING: timed.save}
    compiled = torch.compile(step.module, dynamic=False, fullgraph=True, options=passes)
    call = step.call(compiled)
    begin = time.perf_counter()
    with _without_kernels(), contextlib.suppress(_Compiled):
        call()
    return timed, time.perf_counter() - begin


def _measured(name: str) -> dict[str, Any]:
    """The record of one workload, or that of its failure."""
    command = [sys.executable, "-m", "bench.models.pass_time", name]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=CHILD_TIMEOUT, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    except subprocess.CalledProcessError as e:
        failure = (e.stderr.strip().splitlines() or ["no message"])[-1][:300]
    except subprocess.TimeoutExpired:
        failure = f"no end within {CHILD_TIMEOUT:.0f} s"
    return {"record": "pass-time", "workload": name, "failure": failure}


def table(records: Sequence[dict[str, Any]]) -> str:
    """Seconds of the pass, of torch's own compile, and the first as a share of the second."""
    body = []
    for r in records:
        cells = [
            r["workload"],
            r.get("failure") or r["size"],
            r.get("graphs"),
            r.get("gemms"),
            r.get("fused"),
        ]
        for state in STATES:
            if state in r:
                ours, torchs = r[state]["pass_seconds"], r[state]["torch_seconds"]
                cells += [f"{ours:.3f}", f"{torchs:.2f}", f"{ours / torchs:.1%}"]
        body.append(cells)
    columns = ["step", "size", "graphs", "GEMMs", "fused"]
    columns += [f"{state} {what}" for state in STATES for what in ("pass s", "torch s", "share")]
    return tabulate(body, columns, tablefmt="github", disable_numparse=True)


def main(arguments: list[str], results_folder: Path) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench pass-time", description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", default=[], metavar="NAME", help="or models; default: all of them"
    )
    parser.add_argument("--output", type=Path, default=results_folder, metavar="DIR")
    options = parser.parse_args(arguments)
    try:
        names = [w.name for w in select_models(options.workloads)]
    except ValueError as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2
    path = options.output / report.file_name("pass_time")
    report.write(path, [header("pass_time", goal=GOAL)])
    records = []
    with report.interruptible():
        for name in names:
            records.append(_measured(name))
            report.write(path, records[-1:])
            print(f"{name}: {records[-1].get('failure') or 'done'}", flush=True)
    print(f"\n{table(records)}\nrows: {path}")
    return 1 if any("failure" in r for r in records) else 0


if __name__ == "__main__":
    (workload,) = select_models([sys.argv[1]])
    print(json.dumps(measure(workload)))
