"""The kernels that ComFuse will ask for in a run over models, to compile them ahead.  Needs no GPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

import torch

from bench.models import MODELS, Step
from bench.workloads.models import ModelWorkload
from comfuse.frontend.calls import steps
from comfuse.generator.emit import KernelSource, emit
from comfuse.generator.plan import plan
from comfuse.inductor.report import Report, explain_model
from comfuse.ops import programs, resolver


def explained(step: Step, *, measure: bool = False) -> Report:
    """What becomes of each GEMM of a step, forward and backward."""
    torch._dynamo.reset()  # what it has seen of other sizes would make these symbolic
    first, *others = step.inputs
    first = first.detach().requires_grad_(step.training)
    return explain_model(step.module, first, *others, training=step.training, measure=measure)


def sources_of(workloads: Iterable[ModelWorkload]) -> list[KernelSource]:
    """The kernels of the regions that are to be fused, with a line for each workload.

    Without a GPU the models have no memory, and what surrounds their attention may differ a little.
    """
    torch.backends.mha.set_fastpath_enabled(False)  # as in the worker
    device = "cuda" if torch.cuda.is_available() else "meta"
    gpu = resolver.planner_gpu(0) if device == "cuda" else "h200"
    made: list[KernelSource] = []
    for w in workloads:
        begin = time.monotonic()
        model = MODELS[w.model]
        report = explained(Step.of(model, model.real, training=w.training, device=device))
        regions = {(row.verdict.spec, row.verdict.shape[0]) for row in report.rows if row.verdict.fused}
        for text, rows in regions:
            hint = resolver.m_class(int(rows))
            made += [emit(plan(step.stage.spec, gpu, hint)) for step in steps(programs.parse(text).spec)]
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        print(
            f"{w.name}: {report.fused} of {len(report.rows)} GEMMs fused, {len(regions)} regions, "
            f"{time.monotonic() - begin:.1f} s",
            flush=True,
        )
    return made
