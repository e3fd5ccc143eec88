"""Compiles kernels in parallel, before anything is measured; one that fails does not stop the others."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from bench.providers import Provider
from bench.workloads import Workload
from comfuse.build import BuiltKernel, Source, build, jobs_that_fit
from comfuse.generator.emit import KernelSource


def build_all(
    sources: Iterable[Source], say: Callable[[str], None] = print, jobs: int | None = None
) -> dict[str, BuiltKernel | Exception]:
    """Build sources, each name once: the libraries, or the errors, by name.

    ``say`` gets a line now and then.
    """
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


def sources_of(chosen: Iterable[Provider], measured: Iterable[Workload]) -> list[KernelSource]:
    """The KernelSources that these providers will ask for; a refusal is printed."""
    sources = []
    for provider, w in itertools.product([p for p in chosen if p.source is not None], measured):
        try:
            sources.append(provider.source(w))
        except ValueError as e:
            print(f"{w.name} {provider.name}: {type(e).__name__}: {e}")
    return sources
