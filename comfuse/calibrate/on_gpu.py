"""Times probes on the current GPU, in CUDA graphs, in turn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from comfuse import library
from comfuse.build import packs
from comfuse.calibrate.probe import Probe
from comfuse.errors import ComFuseError
from comfuse.generator.emit import emit
from comfuse.generator.spec import FusedSpec, Major, Space
from comfuse.library.rows import MAX_ROWS
from comfuse.ops import native, region_out, resolver
from comfuse.ops.programs import parse
from comfuse.reference import TORCH_DTYPES
from comfuse.timing import Captured, capture, time_interleaved

_LONG = 8192  # of the library's GEMM: rows, columns, products a sum
_COPIED = 2**31  # bytes, far more than caches hold
_TOGETHER = 12  # probes whose tensors are there at once
_WITHOUT_GPU = "constants are measured where they are used; without a GPU the planner goes by its own"


class GpuTimer:
    """A :class:`comfuse.calibrate.Timer` on the current GPU.

    Kernels are registered with the binding past the planner's choice, each in place of the one before: a
    process that measured goes on with kernels that are right, but not the fastest.
    """

    def __init__(self, rounds: int, say: Callable[[str], object]) -> None:
        """Raises DeviceError: there is no GPU that runs kernels."""
        index = resolver.current_gpu("calibrate", _WITHOUT_GPU)
        self.rounds, self.say = rounds, say
        self.device = torch.device("cuda", index)

    def flops(self) -> float:
        a, b = (torch.randn(_LONG, _LONG, device=self.device).bfloat16() for _ in range(2))
        out = torch.empty_like(a)
        return 2.0 * _LONG**3 / self._seconds(lambda: torch.mm(a, b.t(), out=out))

    def bandwidth(self) -> float:
        source = torch.empty(_COPIED, dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        return 2.0 * _COPIED / self._seconds(lambda: target.copy_(source))

    def times(self, wanted: Sequence[Probe]) -> list[float | None]:
        """Raises what a build raises for want of a compiler."""
        native.load()
        sources = {probe.plan: emit(probe.plan) for probe in wanted}
        built = packs.build_all(sources.values(), say=self.say)
        found: list[float | None] = []
        for i in range(0, len(wanted), _TOGETHER):
            part = wanted[i : i + _TOGETHER]
            graphs: dict[str, Captured] = {}
            for j, probe in enumerate(part):
                kernel = built[sources[probe.plan].name]
                if isinstance(kernel, ComFuseError):
                    self.say(f"left out: {probe.name}: {str(kernel).splitlines()[0]}")
                    continue
                graphs[str(j)] = capture(launch(probe, library.load(kernel), self.device))
            times = time_interleaved(graphs, self.rounds) if graphs else {}
            found += [times[str(j)].us if str(j) in times else None for j in range(len(part))]
            self.say(f"{len(found)} of {len(wanted)} launches timed")
            graphs.clear()
            gc.collect()
            torch.cuda.empty_cache()
        return found

    def _seconds(self, call: Callable[[], object]) -> float:
        return time_interleaved({"": capture(call)}, self.rounds)[""].us * 1e-6


def launch(probe: Probe, kernel: library.LoadedKernel, device: torch.device) -> Callable[[], None]:
    """A call of this kernel, with tensors of its own.

    It has to be captured before another kernel of the same program is registered.
    """
    text = probe.plan.spec.text()
    native.register_program(text)
    native.register(text, kernel, 1, probe.plan.max_m or MAX_ROWS)
    program = parse(text)
    a, b, operands = _inputs(probe.plan.spec, probe.m, device)
    out = [
        torch.empty(shape, dtype=dtype, device=device)
        for shape, dtype in zip(program.output_shapes((probe.m,)), program.output_dtypes, strict=True)
    ]
    scalars = [1e-5] * program.scalar_count
    return lambda: region_out(text, a, b, operands, scalars, out)


def _inputs(spec: FusedSpec, m: int, device: torch.device) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Random numbers: zeros would take less power, and hold a higher clock."""
    a = torch.randn(m, spec.k, device=device).bfloat16()
    b = (spec.k**-0.5 * torch.randn(spec.n, spec.k, device=device)).bfloat16()
    if spec.b_major is Major.MN:
        b = b.t().contiguous().t()
    sizes = {Space.TILE: (m, spec.n), Space.ROW: (spec.n,), Space.COLUMN: (m,)}
    operands = [
        torch.randn(sizes[o.space], device=device).to(TORCH_DTYPES[o.dtype])
        for o in spec.operands
        if o.space is not Space.SCALAR
    ]
    return a, b, operands
