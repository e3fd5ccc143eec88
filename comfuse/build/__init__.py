"""Source text in, shared library out: compiled once, kept in a cache that is addressed by content.

:func:`build` is the whole interface.  JIT compilation and a library built ahead of time both call it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from comfuse import settings
from comfuse.build import cache, headers, ptxas
from comfuse.build.cache import BuiltKernel
from comfuse.build.compile import compile_cuda, cuda_flags, environment_flags, toolchain
from comfuse.build.parallel import Task, run_all
from comfuse.build.progress import BuildEvent, Progress
from comfuse.build.toolkit import CudaToolkit, Cutlass
from comfuse.errors import BuildError, CacheError, ComFuseError, JitDisabledError, ToolchainError

__all__ = [
    "BuildEvent",
    "BuiltKernel",
    "Progress",
    "Source",
    "build",
    "build_many",
    "entry_of",
    "find_built",
    "jobs_that_fit",
    "manifest_of",
    "task",
]

_LOGGER = logging.getLogger("comfuse")
_BYTES_A_JOB = 1.5e9  # the compilers of one kernel

#: Facts of a KernelPlan that a manifest repeats, so that a library says what it is without the planner.
_PLAN_FACTS = (
    "tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "schedule", "stages", "tile_slots", "scope",
    "shared_bytes", "registers", "max_m", "decisions",
)  # fmt: skip


class Source(Protocol):
    """What :func:`build` takes: a ``KernelSource``, or anything with a name, a text and a plan (or None)."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def plan(self) -> Any: ...


def build(source: Source, *, verbose: bool = False, progress: Progress | None = None) -> BuiltKernel:
    """The library of ``source``: from the cache, else compiled now.  Blocks.

    The cache key is the text, every header of ours that it includes, the flags, and the versions of nvcc and
    CUTLASS.  Where there is no compiler, a library that any compiler made of the same text and headers
    serves.

    Args:
        source: name and text of a ``.cu`` that exports ``cf_launch_<name>`` and its like.
        verbose: log the compiler's output at INFO.
        progress: called with a :class:`BuildEvent` several times a second.

    Raises:
        JitDisabledError: it is not built yet and ``COMFUSE_JIT=off``.
        ToolchainError: it is not built yet and a compiler, CUTLASS or a CUDA build of torch is missing.
        BuildError: the compiler refused; names the kernel and where its source is kept.
        CacheError: the cache is not writable, or another process held the entry's lock for too long.
    """
    started = time.monotonic()

    def report(stage: Literal["cached", "waiting", "compiling", "done", "failed"]) -> None:
        if progress is not None:
            progress(BuildEvent(source.name, stage, time.monotonic() - started))

    _dump(source)
    found = find_built(source)
    if found is not None:
        report("cached")
        return found
    if settings.jit() == "off":
        raise JitDisabledError(source.name)
    toolkit, cutlass = toolchain()
    entry = _entry(source, toolkit, cutlass)
    with cache.locked(entry, lambda: report("waiting")):
        found = cache.find(entry)  # another process may have built it meanwhile
        if found is not None:
            report("cached")
            return found
        with cache.private_folder(entry) as folder:
            try:
                with cache.told_where(source.name, folder):
                    built = _compile(
                        source, entry, folder, toolkit, cutlass, lambda: report("compiling"), started
                    )
            except ComFuseError:
                report("failed")
                raise
            finally:
                log = folder / "build.log"
                if verbose and log.is_file():
                    _LOGGER.info("%s", log.read_text(errors="replace"))
    report("done")
    _LOGGER.info("%s: built in %.1f s", source.name, built.info["build_seconds"])
    return built


def find_built(source: Source) -> BuiltKernel | None:
    """The library of ``source`` if it is in the cache; starts no compiler."""
    try:
        toolkit, cutlass = toolchain()
    except ToolchainError:
        return cache.find_any(_entry_prefix(source))
    return cache.find(_entry(source, toolkit, cutlass))


def build_many(
    sources: Sequence[Source], *, jobs: int | None = None, progress: Progress | None = None
) -> list[BuiltKernel]:
    """Builds several sources at once; the results are in the order of ``sources``.

    Args:
        jobs: builds at once; ``COMFUSE_MAX_JOBS``, processors and memory bound it if None.
        progress: as for :func:`build`, called from several threads.

    Raises:
        The first error, in the order of ``sources``, after all builds have ended; its notes name the others.
    """
    outcomes = run_all([task(source) for source in sources], jobs=jobs or jobs_that_fit(), progress=progress)
    errors = [
        (source.name, outcome)
        for source, outcome in zip(sources, outcomes, strict=True)
        if isinstance(outcome, ComFuseError)
    ]
    if errors:
        _, first = errors[0]
        for name, error in errors[1:]:
            first.add_note(f"{name} failed too: {str(error).splitlines()[0]}")
        raise first
    return [outcome for outcome in outcomes if not isinstance(outcome, ComFuseError)]


def task(source: Source) -> Task[BuiltKernel]:
    """The build of ``source`` as one of several (:func:`comfuse.build.parallel.run_all`)."""
    return Task(source.name, lambda progress: build(source, progress=progress))


def jobs_that_fit(bytes_a_job: float = _BYTES_A_JOB) -> int:
    """How many compilers this machine can run at once: ``COMFUSE_MAX_JOBS``, else by processors and
    memory, of which each takes ``bytes_a_job``.
    """
    limit = settings.max_jobs()
    if limit is not None:
        return limit
    processors = len(os.sched_getaffinity(0))
    return max(1, min(processors, int(_available_memory() / bytes_a_job)))


def _available_memory() -> float:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass
    return _BYTES_A_JOB


def entry_of(source: Source) -> str:
    """The name of the cache entry of ``source``.  Raises ToolchainError without a compiler."""
    return _entry(source, *toolchain())


def _entry_prefix(source: Source) -> str:
    flags = "\n".join(cuda_flags()) + environment_flags()
    return f"{source.name}-{cache.hash_text(source.text, headers.digest(source.text), flags)[:16]}-"


def _entry(source: Source, toolkit: CudaToolkit, cutlass: Cutlass) -> str:
    return f"{_entry_prefix(source)}{cache.hash_text(toolkit.version, cutlass.version)[:8]}"


def _compile(
    source: Source,
    entry: str,
    folder: Path,
    toolkit: CudaToolkit,
    cutlass: Cutlass,
    tick: Callable[[], None],
    started: float,
) -> BuiltKernel:
    name = source.name
    text = folder / f"{name}.cu"
    text.write_text(source.text)
    log = folder / "build.log"
    try:
        library = compile_cuda(name, text, folder, toolkit, cutlass, tick)
        facts = ptxas.facts(log.read_text(errors="replace"))
        if facts["messages"]:  # a kernel that waits for each of its products: slow at best
            raise BuildError(name, text, log, "\n".join(["ptxas objects:", *facts["messages"]]))
    except BuildError as e:
        kept = cache.keep_failed(name, {f"{name}.cu": text, "build.log": log})
        raise BuildError(name, kept / f"{name}.cu", kept / "build.log", e.message) from None
    if facts["spill_bytes"]:
        _LOGGER.warning("%s: %d bytes of register spills", name, facts["spill_bytes"])
    manifest = manifest_of(source) | {
        "library": f"{name}.so",
        "ptxas": facts,
        "toolchain": {"nvcc": toolkit.version, "cutlass": cutlass.version, "flags": list(cuda_flags())},
        "build_seconds": round(time.monotonic() - started, 3),
    }
    return cache.publish(entry, {f"{name}.so": library, f"{name}.cu": text, "build.log": log}, manifest)


def manifest_of(source: Source) -> dict[str, Any]:
    """What a manifest says of a kernel before it is compiled: its name, spec and plan, and which headers make
    it one of this version (:mod:`comfuse.build.prune`).
    """
    plan = source.plan
    return {
        "name": source.name,
        "spec": plan.spec.text() if plan is not None else None,
        "plan": {fact: getattr(plan, fact) for fact in _PLAN_FACTS if hasattr(plan, fact)},
        "includes": headers.direct(source.text),
        "headers": headers.digest(source.text),
    }


def _dump(source: Source) -> None:
    folder = settings.dump_dir()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{source.name}.cu").write_text(source.text)
    except OSError as e:
        raise CacheError(
            f"cannot write below {folder}: {e}; set COMFUSE_DUMP_DIR to another folder, or to nothing"
        ) from e
