"""``comfuse demo``: the out-projection of BERT-large and what follows it, from Python to a timed kernel."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import calibration, fallbacks
from comfuse.build import BuildEvent, BuiltKernel, build
from comfuse.errors import JitDisabledError, ToolchainError
from comfuse.explain import explain
from comfuse.frontend import fuse, trace_region
from comfuse.generator.emit import KernelSource, emit
from comfuse.generator.plan import plan
from comfuse.generator.spec import FusedSpec
from comfuse.ops import native, resolver

M, N, K = 16384, 1024, 1024
_REFERENCE_ROWS = 256  # on a CPU the whole problem would take a while
_CHECKED_ROWS = 512
_RATIO_OF_ERRORS = 2.0  # the numerics contract: at most twice eager's error

Say = Callable[[str], object]


def block(x: Tensor, w: Tensor, bias: Tensor, residual: Tensor, ln_weight: Tensor, ln_bias: Tensor) -> Tensor:
    """What the demo fuses."""
    h = F.linear(x, w, bias) + residual
    return F.layer_norm(h, (h.shape[-1],), ln_weight, ln_bias)


def run(say: Say, *, rounds: int = 30, inductor: bool = True) -> int:
    """Runs as much of the demo as this machine can, and says what it left out.

    Args:
        say: gets one line, or several, at a time.
        rounds: how often each candidate is timed.
        inductor: also time TorchInductor.

    Returns:
        0, or 1 if a result was wrong or a kernel that should have run did not.
    """
    unsupported = _reason_against_gpu()
    inputs = _inputs(M, "cpu" if unsupported else "cuda")
    spec = _trace(say, inputs)
    source = emit(plan(spec, calibration.gpu(_gpu_name(unsupported)), resolver.m_class(M)))
    say(f"\n3. the kernel, {source.text.count(chr(10))} lines of types\n")
    say(source.text)
    built = _build(say, source)
    if unsupported:
        return _without_gpu(say, built, unsupported)
    return _on_gpu(say, inputs, rounds, inductor)


def _reason_against_gpu() -> str:
    """Why kernels cannot run here, or an empty string."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    return resolver.unsupported_gpu(torch.cuda.current_device())


def _gpu_name(unsupported: str) -> str:
    return "h200" if unsupported else resolver.planner_gpu(torch.cuda.current_device())


def _inputs(m: int, device: str) -> list[Tensor]:
    """Numbers like a trained model's; on a CPU only their shapes are wanted, so they hold none."""
    if device == "cpu" and m == M:
        return [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in _shapes(m)]
    torch.manual_seed(0)
    scales = (1.0, K**-0.5, 1.0, 1.0, 1.0, 1.0)
    return [
        (scale * torch.randn(shape, device=device)).to(torch.bfloat16)
        for scale, shape in zip(scales, _shapes(m), strict=True)
    ]


def _shapes(m: int) -> list[tuple[int, ...]]:
    return [(m, K), (N, K), (N,), (m, N), (N,), (N,)]


def _trace(say: Say, inputs: list[Tensor]) -> FusedSpec:
    say(f"1. trace: BERT-large's out-projection + bias + residual + LayerNorm, M = {M}, N = {N}, K = {K}\n")
    started = time.perf_counter()
    spec = trace_region(block, inputs).spec
    say(f"   {len(spec.nodes)} nodes in {time.perf_counter() - started:.2f} s, without GPU or compiler\n")
    say("2. plan\n")
    say("\n".join(f"   {line}".rstrip() for line in str(explain(block, *inputs)).split("\n")))
    return spec


def _build(say: Say, source: KernelSource) -> BuiltKernel | None:
    say("4. build\n")
    progress = _Progress(say)
    try:
        built = build(source, progress=progress)
    except (ToolchainError, JitDisabledError) as e:
        say(f"   not compiled: {e}")
        return None
    facts = built.info["ptxas"]
    say(f"   {progress.summary}; {facts['registers']} registers, {facts['spill_bytes']} bytes of spills")
    say(f"   {built.path}")
    return built


class _Progress:
    """Shows that a build is alive: one line that counts seconds on a terminal, nothing in a log."""

    def __init__(self, say: Say) -> None:
        self.summary = ""
        self._say = say

    def __call__(self, event: BuildEvent) -> None:
        if event.stage == "cached":
            self.summary = "found in the cache"
        elif event.stage == "done":
            self.summary = f"compiled in {event.seconds:.1f} s"
        if not sys.stderr.isatty():
            return
        alive = event.stage in ("compiling", "waiting")
        text = f"   {event.stage} {'.' * (1 + int(2 * event.seconds) % 10):<10} {event.seconds:5.1f} s"
        print(
            f"\r{text if alive else ' ' * len(text)}", end="" if alive else "\r", file=sys.stderr, flush=True
        )


# --- results --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    name: str
    call: Callable[[], Any]
    error: float | None  # relative to float64; None: it computes something else


def _expected(inputs: list[Tensor], rows: slice) -> Tensor:
    x, w, bias, residual, g, b = (t.double() for t in inputs)
    return block(x[rows], w, bias, residual[rows], g, b)


def _error(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


def _without_gpu(say: Say, built: BuiltKernel | None, unsupported: str) -> int:
    say(f"\n5. the float32 reference on the CPU, {_REFERENCE_ROWS} rows\n")
    inputs = _inputs(_REFERENCE_ROWS, "cpu")
    with torch.no_grad():
        expected = _expected(inputs, slice(None))
        error, eager = _error(fuse(block)(*inputs), expected), _error(block(*inputs), expected)
    say(f"   error against float64: {error:.2e}; PyTorch eager: {eager:.2e}")
    say("\nWhat did not run here:")
    if built is None:
        say("   the kernel was not compiled (see 4)")
    say(f"   the kernel was not run, checked or timed: {unsupported}")
    return 0 if error <= _RATIO_OF_ERRORS * eager else 1


@torch.no_grad()
def _on_gpu(say: Say, inputs: list[Tensor], rounds: int, inductor: bool) -> int:
    say("\n5. run\n")
    started = time.perf_counter()
    native.load()
    say(f"   torch binding loaded in {time.perf_counter() - started:.1f} s")
    fallbacks.reset()
    fused = fuse(block)
    y = fused(*inputs)
    rows = slice(None, None, M // _CHECKED_ROWS)
    expected = _expected(inputs, rows)
    candidates = _candidates(say, inputs, fused, lambda y: _error(y[rows], expected), inductor)
    errors = {c.name: c.error for c in candidates if c.error is not None}
    say(f"   error against float64 over {expected.shape[0]} rows: {_error(y[rows], expected):.2e}")
    missed = fallbacks.counts()
    for (where, reason), count in missed.items():
        say(f"   {count} calls of {where} did not run the kernel: {reason}")
    _time(say, candidates, rounds)
    good = not missed and errors["ComFuse"] <= _RATIO_OF_ERRORS * errors["PyTorch eager"]
    return 0 if good else 1


def _candidates(
    say: Say,
    inputs: list[Tensor],
    fused: Callable[..., Tensor],
    error: Callable[[Tensor], float],
    inductor: bool,
) -> list[_Candidate]:
    x, w = inputs[:2]
    weight, product = w.t(), torch.empty(M, N, dtype=x.dtype, device=x.device)
    calls: list[tuple[str, Callable[..., Tensor]]] = [("PyTorch eager", block)]
    if inductor:
        say("   TorchInductor compiles its version")
        calls.append(("TorchInductor", torch.compile(block, dynamic=False)))
    calls.append(("ComFuse", fused))
    return [
        _Candidate("cuBLAS, GEMM alone", lambda: torch.mm(x, weight, out=product), None),
        *(_Candidate(name, lambda fn=fn: fn(*inputs), error(fn(*inputs))) for name, fn in calls),  # type: ignore[misc]
    ]


def _time(say: Say, candidates: list[_Candidate], rounds: int) -> None:
    from comfuse.timing import capture, time_interleaved

    times = time_interleaved({c.name: capture(c.call) for c in candidates}, rounds)
    base = times[candidates[0].name].us
    say(f"\n   {torch.cuda.get_device_name()}, torch {torch.__version__}: CUDA graphs, {rounds} interleaved")
    say("   rounds; medians, 10th to 90th percentile\n")
    say(f"   {'':<20}{'us':>8}{'spread':>16}{'x GEMM':>8}{'error':>10}")
    for c in candidates:
        t = times[c.name]
        spread = f"{t.low:.1f} to {t.high:.1f}"
        error = "" if c.error is None else f"{c.error:.1e}"
        say(f"   {c.name:<20}{t.us:>8.1f}{spread:>16}{t.us / base:>8.2f}{error:>10}")
    others = [t.us for name, t in times.items() if name in ("PyTorch eager", "TorchInductor")]
    say(f"\n   {min(others) / times['ComFuse'].us:.2f} x as fast as the best other whole program")
