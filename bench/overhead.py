"""`python -m bench.overhead`: what ComFuse costs on the CPU.

Two figures: microseconds of one call of an op, its launch included, and the seconds that a process needs
to get a kernel that nobody has built yet, or that an earlier process has built.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from bench import compile_sources, report
from bench.environment import ROOT, header

if TYPE_CHECKING:
    import torch

    from comfuse.generator.spec import FusedSpec

# A tiny problem: the GPU is done before the next call comes, so the CPU never waits for a full queue.
M, N, K = 128, 128, 64
CALLS, BATCHES = 200, 100
# The kernel whose build is timed: BERT-large's out-projection, bias, residual and LayerNorm.
BUILD_N, BUILD_K = 1024, 1024
CHILD_TIMEOUT = 300.0
# Of two cores: a cold build of that kernel, and plan, kernel and binding where an earlier process built them.
GOAL_CORES = 2
GOAL_SECONDS = {"cold": compile_sources.GOAL_SECONDS, "cached": 0.05}
GOAL_STEPS = {"cold": ("build",), "cached": ("plan and emit", "build", "load", "binding")}
# The op's first call takes the kernel that was just built, whatever was measured on this machine.
_PLANNED = {"COMFUSE_CALIBRATION": os.devnull, "COMFUSE_TUNED": "off"}


def microseconds(call: Callable[[], object]) -> dict[str, float]:
    """CPU time a call without waiting for the GPU: median, 10th and 90th percentile over batches of calls."""
    import torch

    for _ in range(CALLS):
        call()
    samples = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        samples.append((time.perf_counter() - begin) / CALLS * 1e6)
    samples.sort()
    return {"us": median(samples), "low": samples[BATCHES // 10], "high": samples[BATCHES * 9 // 10]}


def measure_calls() -> list[dict[str, Any]]:
    """ComFuse's ops and their parts beside what torch's own calls cost."""
    import torch
    import torch.nn.functional as F

    from comfuse import ops

    os.environ["COMFUSE_STRICT"] = "1"  # a fallback would be timed under ComFuse's name

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16)

    x, weight, residual = normal(M, K), normal(N, K), normal(M, N)
    bias, ln_weight, ln_bias = normal(N), normal(N), normal(N)
    out = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    wt = weight.t()

    def eager() -> torch.Tensor:
        return F.layer_norm(F.linear(x, weight, bias) + residual, (N,), ln_weight, ln_bias)

    calls: dict[str, Callable[[], object]] = {
        "comfuse.ops.fused_gemm_layernorm": lambda: ops.fused_gemm_layernorm(
            x, weight, bias, residual, ln_weight, ln_bias
        ),
        "comfuse.ops.fused_gemm": lambda: ops.fused_gemm(x, weight, bias),
        "its dispatcher op, LayerNorm": _dispatched(x, weight, [bias, residual, ln_weight, ln_bias]),
        **_launches(x, weight, [bias, residual, ln_weight, ln_bias], out),
        "torch.mm(out=)": lambda: torch.mm(x, wt, out=out),
        "eager linear + add + layer_norm": eager,
    }
    return [{"record": "call", "call": name, **microseconds(call)} for name, call in calls.items()]


def _layernorm_spec() -> FusedSpec:
    from comfuse.generator import catalog
    from comfuse.generator.spec import DType

    bf16 = DType.BF16
    return catalog.layernorm(N, K, bf16, bias=bf16, residual=bf16, ln_weight=bf16, ln_bias=bf16)


def _dispatched(x: torch.Tensor, weight: torch.Tensor, operands: list[torch.Tensor]) -> Callable[[], object]:
    """What a named op calls: the C++ op with its checks, its output's memory and the launch."""
    from comfuse.ops.schema import FIXED

    op, text = FIXED[1][len(operands)], _layernorm_spec().text()
    return lambda: op(text, x, weight, *operands, 1e-5)


def _launches(
    x: torch.Tensor, weight: torch.Tensor, operands: list[torch.Tensor], out: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """The kernel libraries' launch functions alone, called through ctypes with everything prepared.

    Two tiles hold a row, so that the tiles of a LayerNorm wait for each other: its launch is cooperative.
    """
    import ctypes

    import torch

    from bench.launch import forced_plan, raw_launch
    from comfuse import library
    from comfuse.build import build
    from comfuse.generator import catalog
    from comfuse.generator.emit import emit
    from comfuse.generator.spec import DType

    bf16 = DType.BF16
    programs = {
        "the launch alone": (catalog.linear(N, K, bf16, bias=bf16), operands[:1], ()),
        "the launch alone, cooperative": (_layernorm_spec(), operands, (1e-5,)),
    }
    stream = torch.cuda.current_stream().cuda_stream
    calls: dict[str, Callable[[], object]] = {}
    for name, (spec, tensors, scalars) in programs.items():
        plan = forced_plan(spec, "pingpong-128x64")
        kernel = library.load(build(emit(plan)))
        launch, workspace, arguments = raw_launch(kernel, plan.spec, x, [weight], tensors, [out], scalars)
        parts = (ctypes.byref(arguments), workspace.data_ptr(), stream)
        if code := launch(*parts):
            raise RuntimeError(f"{kernel.name}: the launch returned {code}")
        # Defaults hold what the call needs, the workspace's memory among it.
        calls[name] = lambda launch=launch, parts=parts, _held=workspace: launch(*parts)
    return calls


def child(cores: int | None) -> dict[str, Any]:
    """Seconds of each step to a kernel in this process; importing torch and the CUDA context come before."""
    import torch

    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    gpu = torch.cuda.is_available()
    if gpu:
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    steps: dict[str, float] = {}
    last = time.perf_counter()

    def done(step: str) -> None:
        nonlocal last
        now = time.perf_counter()
        steps[step], last = now - last, now

    from comfuse import library
    from comfuse.build import build
    from comfuse.generator import catalog, emit, plan
    from comfuse.generator.spec import DType
    from comfuse.ops import native

    done("import")
    bf16 = DType.BF16
    spec = catalog.layernorm(BUILD_N, BUILD_K, bf16, bias=bf16, residual=bf16, ln_weight=bf16, ln_bias=bf16)
    source = emit.emit(plan.plan(spec))
    done("plan and emit")
    built = build(source)
    done("build")
    library.load(built)
    done("load")
    native.load()
    done("binding")
    if gpu:
        _first_call()
        done("first call of the op")
    return steps


def _first_call() -> None:
    import torch

    from comfuse import ops

    def zeros(*size: int) -> torch.Tensor:
        return torch.zeros(*size, device="cuda", dtype=torch.bfloat16)

    m = 4096  # many rows: the kernel that was just built
    x, weight, row = zeros(m, BUILD_K), zeros(BUILD_N, BUILD_K), zeros(BUILD_N)
    ops.fused_gemm_layernorm(x, weight, row, zeros(m, BUILD_N), row, row)
    torch.cuda.synchronize()


def measure_builds() -> list[dict[str, Any]]:
    """A cold build and a cached load, each in a fresh process: with all cores, and with two."""
    records = []
    for cores in (None, GOAL_CORES):
        with tempfile.TemporaryDirectory(prefix="comfuse-bench-") as folder:
            for state in ("cold", "cached"):
                command = [sys.executable, "-m", "bench.overhead", "--child"]
                command += ["--cores", str(cores)] if cores is not None else []
                fields: dict[str, Any] = {"record": "build", "state": state, "cores": cores or "all"}
                try:
                    done = subprocess.run(
                        command,
                        cwd=ROOT,
                        env={**os.environ, **_PLANNED, "COMFUSE_CACHE_DIR": folder},
                        capture_output=True,
                        text=True,
                        timeout=CHILD_TIMEOUT,
                        check=True,
                    )
                    fields["steps"] = json.loads(done.stdout.splitlines()[-1])
                except subprocess.CalledProcessError as e:
                    fields["failure"] = (e.stderr.strip().splitlines() or ["no message"])[-1][:300]
                except subprocess.TimeoutExpired:
                    fields["failure"] = f"no end within {CHILD_TIMEOUT:.0f} s"
                records.append(fields)
    return records


def table(records: list[dict[str, Any]]) -> str:
    calls = [r for r in records if r["record"] == "call"]
    builds = [r for r in records if r["record"] == "build"]
    lines = []
    if calls:
        body = [[r["call"], f"{r['us']:.2f}", f"{r['low']:.2f}-{r['high']:.2f}"] for r in calls]
        lines.append(tabulate(body, [f"M,N,K = {M},{N},{K}", "us a call", "10 %-90 %"], tablefmt="github"))
    if builds:
        steps = list(dict.fromkeys(s for r in builds for s in r.get("steps", {})))
        body = []
        for r in builds:
            cells = [f"{r['steps'][s]:.3f}" if s in r.get("steps", {}) else "-" for s in steps]
            body.append([r["state"], r["cores"], *cells, r.get("failure", "")])
        lines.append(tabulate(body, ["process", "cores", *(f"{s} s" for s in steps), ""], tablefmt="github"))
    return "\n\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--only", choices=["calls", "builds"], default=None)
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.cores)))
        return 0

    path = options.output / report.file_name("overhead")
    report.write(path, [header("overhead")])
    records: list[dict[str, Any]] = []
    for part, measure in (("builds", measure_builds), ("calls", measure_calls)):
        if options.only in (None, part):
            new = measure()
            report.write(path, new)
            records += new
    print(f"{table(records)}\nrows: {path}")
    return 1 if any("failure" in r for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())
