"""Compiles kernels in parallel, before anything is measured; one that fails does not stop the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from bench.workloads import Workload

if TYPE_CHECKING:
    from comfuse.build import BuiltKernel


def build_all(
    sources: Iterable[Any], say: Callable[[str], None] = print, jobs: int | None = None
) -> dict[str, BuiltKernel | Exception]:
    """Build KernelSources, each name once: the libraries, or the errors, by name.

    ``say`` gets a line now and then.
    """
    from comfuse.build import build, jobs_that_fit

    unique = {source.name: source for source in sources}
    jobs = jobs or min(jobs_that_fit(), os.cpu_count() or 1)
    results: dict[str, BuiltKernel | Exception] = {}
    begin = said = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(build, source): name for name, source in unique.items()}
        for future in as_completed(futures):
            name = futures[future]
            try:
                results[name] = future.result()
            except Exception as e:
                results[name] = e
                say(f"{name}: {type(e).__name__}: {e}")
            now = time.monotonic()
            if now - said > 5 or len(results) == len(unique):
                said = now
                say(f"{len(results)} of {len(unique)} kernels after {now - begin:.0f} s, {jobs} at a time")
    return results


def spec_of(w: Workload) -> Any:
    """The FusedSpec that ComFuse's ops make of a workload."""
    from comfuse.generator import catalog
    from comfuse.generator.spec import DType

    dtype = DType(w.dtype)
    bias = dtype if w.bias else None
    residual = dtype if w.residual else None
    if w.norm == "layernorm":
        return catalog.layernorm(
            w.n, w.k, dtype, bias=bias, residual=residual, ln_weight=dtype, ln_bias=dtype
        )
    position = w.residual or "before"
    return catalog.rmsnorm(
        w.n, w.k, dtype, bias=bias, residual=residual, rms_weight=dtype, residual_position=position
    )


def sources_of(chosen: Iterable[Workload]) -> list[Any]:
    """The KernelSources that the ops will ask for; a refusal is printed, and raised where it is asked for."""
    from comfuse.generator import emit, plan
    from comfuse.ops.resolver import m_class

    sources = []
    for w in chosen:
        try:
            sources.append(emit.emit(plan.plan(spec_of(w), m=m_class(w.m))))
        except ValueError as e:
            print(f"{w.name}: {type(e).__name__}: {e}")
    return sources
