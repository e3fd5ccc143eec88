"""The kernels that ComFuse will ask for in a run over models, to compile them ahead.  Needs no GPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

import torch

from bench.models import MODELS, Model, Size, Step
from bench.workloads.models import ModelWorkload
from comfuse.frontend.calls import steps
from comfuse.generator.emit import KernelSource, emit
from comfuse.inductor.policy import Policy
from comfuse.inductor.report import Report, explain_model
from comfuse.library import tuned
from comfuse.ops import programs, resolver


def explained(step: Step, *, measure: bool = False, force: bool = False, gpu: str | None = None) -> Report:
    """What becomes of each GEMM of a step, forward and backward.

    Args:
        measure: time each region too.
        force: fuse all that one kernel can do.
        gpu: the planner's name of the GPU; None: this machine's.
    """
    torch._dynamo.reset()  # what it has seen of other sizes would make these symbolic
    first, *others = step.inputs
    first = first.detach().requires_grad_(step.training)
    policy = Policy(force=force, gpu=gpu)
    return explain_model(step.module, first, *others, training=step.training, measure=measure, policy=policy)


def kernels_of(report: Report, gpu: str) -> list[KernelSource]:
    """The kernels of the regions of a model whose numbers of rows are known."""
    regions = {(row.verdict.spec, row.verdict.shape[0]) for row in report.rows if row.verdict.fused}
    return [
        emit(tuned.plan(step.spec, gpu, resolver.m_class(int(rows))))
        for text, rows in sorted(regions)
        for step in steps(programs.parse(text).spec)
    ]


def planned_gpu() -> str:
    """The planner's name of the GPU of this machine, or of the one that is planned for without a GPU."""
    return resolver.planner_gpu(0) if torch.cuda.is_available() else "h200"


def step_of(
    model: Model, size: Size, *, training: bool, dropout: bool = True, device: str | None = None
) -> Step:
    """A step to explain; by default on the GPU, without one on "meta", where it has no memory."""
    torch.backends.mha.set_fastpath_enabled(False)  # as in the worker
    device = device or ("cuda" if torch.cuda.is_available() else "meta")
    return Step.of(model, size, training=training, device=device, dropout=dropout)


def sources_of(workloads: Iterable[ModelWorkload]) -> list[KernelSource]:
    """The kernels of the regions that are to be fused; prints a line for each workload."""
    made: list[KernelSource] = []
    for w in workloads:
        begin = time.monotonic()
        model = MODELS[w.model]
        report = explained(step_of(model, model.real, training=w.training))
        made += kernels_of(report, planned_gpu())
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        seconds = time.monotonic() - begin
        print(f"{w.name}: {report.fused} of {len(report.rows)} GEMMs fused, {seconds:.1f} s", flush=True)
    return made
