"""The kernels of a graph's regions: built, all at once, before its compiled function first runs.

What ``COMFUSE_JIT`` says decides what happens to kernels that are not built yet: ``auto`` and ``require``
build them now, ``off`` leaves their regions to TorchInductor, and ``background`` does so until they are
built (:mod:`comfuse.inductor.background`).  A region on a GPU is fused only if its kernels can be launched:
its call never runs the float32 reference.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from comfuse import fallbacks, settings
from comfuse.build import Source, find_built, jobs_that_fit, task
from comfuse.build.binding import NAME as BINDING
from comfuse.build.binding import build_binding, find_binding
from comfuse.build.parallel import Task, run_all
from comfuse.build.progress import BuildEvent, Display, Progress
from comfuse.errors import BuildError, ComFuseError, ToolchainError
from comfuse.frontend.calls import steps
from comfuse.inductor import background
from comfuse.inductor.candidate import Found
from comfuse.inductor.choose import row_classes
from comfuse.inductor.policy import Policy
from comfuse.inductor.verdict import Verdict
from comfuse.library.source import source_of
from comfuse.ops import resolver

_REFUSED: dict[
    str, str
] = {}  # what the compiler said of the kernels that it refused, by name: once is enough


def settle(
    chosen: Sequence[tuple[Found, Verdict]], policy: Policy, *, build: bool = True
) -> list[Verdict | Exception]:
    """The verdicts of a graph's regions, once it is known which of their kernels are there to run.

    Builds what is missing where the JIT mode says so; without ``build``, takes for built what it would
    build.  A region whose kernels cannot be had is left to TorchInductor, with the message of the planner or
    the compiler, and with ``build`` counted as a fallback.  A bug that shows in one region stands in the
    place of its verdict.

    Raises:
        ToolchainError: there is no compiler, and the mode is ``require``.
        FallbackError: a kernel cannot be planned or built, or may not be, and ``COMFUSE_STRICT`` is 1.
        KeyboardInterrupt: the builds under way have been ended.
    """
    mode = policy.jit or settings.jit()
    settled: list[Verdict | Exception] = [verdict for _, verdict in chosen]
    if not build and mode != "off":
        return settled
    tasks: dict[int, dict[str, Task[Any] | None]] = {}  # of regions on a GPU, by place
    for i, (found, verdict) in enumerate(chosen):
        if verdict.fused and runs_on_gpu(found):
            try:
                tasks[i] = tasks_of(found)
            except ComFuseError as e:  # the GPU, or what was calibrated of it, is not the one decided for
                settled[i] = _left(verdict, str(e), count=build)
            except Exception as e:
                settled[i] = e
    missing = {name: one for needed in tasks.values() for name, one in needed.items() if one is not None}
    reasons: Mapping[str, str | Exception] = {}  # why a kernel is not there, by its name
    if mode == "background":
        reasons = background.start(missing.values(), _of_chains(chosen, tasks))
    elif mode == "off":
        reasons = {name: f"{name} is not built, and COMFUSE_JIT is off" for name in missing}
    elif missing:
        reasons = _build(tuple(missing.values()), required=mode == "require")
    for i, needed in tasks.items():
        found, verdict = chosen[i]
        reason = next((reasons[name] for name in needed if name in reasons), "")
        if reason:
            is_new = mode == "off" and build  # builds count their own failures
            settled[i] = reason if isinstance(reason, Exception) else _left(verdict, reason, count=is_new)
            continue
        try:
            reason = _unregistered(found)
        except Exception as e:
            settled[i] = e
            continue
        if reason:
            settled[i] = _left(verdict, reason, count=build)
    return settled


def _left(verdict: Verdict, reason: str, *, count: bool) -> Verdict:
    """The verdict of a region that has no kernel for a reason."""
    if count:
        fallbacks.record("torch.compile", reason)
    return replace(verdict, fused=False, reason=reason)


def _of_chains(chosen: Sequence[tuple[Found, Verdict]], tasks: Mapping[int, Iterable[str]]) -> set[str]:
    """The kernels without which links have kernels of their own."""
    return {name for i, needed in tasks.items() if chosen[i][0].candidate.links for name in needed} - {
        BINDING
    }


def runs_on_gpu(found: Found) -> bool:
    """Whether the region's tensors are on a GPU, where it runs kernels."""
    return torch.cuda.is_available() and _device(found).type == "cuda"


def tasks_of(found: Found) -> dict[str, Task[Any] | None]:
    """What a region on a GPU needs, by name: how to build it, or None where it is built."""
    binding = Task(BINDING, _build_binding) if find_binding() is None else None
    needed: dict[str, Task[Any] | None] = {BINDING: binding}
    for source in sources(found):
        needed[source.name] = task(source) if find_built(source) is None else None
    return needed


def sources(found: Found) -> list[Source]:
    """The kernels of a region that no library has, for all numbers of rows that may come."""
    device = _index(found)
    gpu = resolver.calibrated_gpu(device)
    return [
        source_of(step.spec, gpu, hint)
        for step in steps(found.lowered.spec)
        for hint in row_classes(found)
        if resolver.shelved(step.text, _example(hint), device) is None
    ]


def _example(hint: int | None) -> int:
    """A number of rows of a class."""
    return resolver.M_CLASSES[-1] + 1 if hint is None else hint


def _device(found: Found) -> torch.device:
    return found.candidate.anchors[0].meta["val"].device


def _index(found: Found) -> int:
    index = _device(found).index
    return torch.cuda.current_device() if index is None else index


def _build(tasks: Sequence[Task[Any]], *, required: bool) -> dict[str, str | Exception]:
    """Builds everything at once; why some failed, by name, which is counted, or the bug that showed."""
    failed: dict[str, str | Exception] = {
        one.name: _REFUSED[one.name] for one in tasks if one.name in _REFUSED
    }
    for name, error in _errors([one for one in tasks if one.name not in _REFUSED]):
        if required and isinstance(error, ToolchainError):
            raise error
        if isinstance(error, BuildError):
            _REFUSED[name] = str(error)
        failed[name] = str(error) if isinstance(error, ComFuseError) else error
    for reason in dict.fromkeys(failed.values()):
        if isinstance(reason, str):
            fallbacks.record("torch.compile", reason)
    return failed


def _errors(tasks: Sequence[Task[Any]]) -> list[tuple[str, Exception]]:
    if not tasks:
        return []
    jobs = jobs_that_fit()
    with Display([one.name for one in tasks], jobs) as display:
        outcomes = run_all(
            [Task(one.name, partial(_outcome, one)) for one in tasks], jobs=jobs, progress=display
        )
    return [(one.name, e) for one, e in zip(tasks, outcomes, strict=True) if isinstance(e, Exception)]


def _outcome(one: Task[Any], progress: Progress) -> Any:
    """What a build gives, or the error that it ended with: it ends no other."""
    try:
        return one.run(progress)
    except Exception as e:
        return e


def _build_binding(progress: Progress) -> Any:
    began = time.monotonic()
    path = build_binding(lambda: progress(BuildEvent(BINDING, "compiling", time.monotonic() - began)))
    progress(BuildEvent(BINDING, "done", time.monotonic() - began))
    return path


def _unregistered(found: Found) -> str:
    """Registers the kernels of a region, which are built.  Why that is not possible, or an empty string."""
    device = _index(found)
    for step in steps(found.lowered.spec):
        for hint in row_classes(found):
            answer = resolver.resolve(step.text, _example(hint), device)
            if answer != 0:
                return answer if isinstance(answer, str) else resolver.refusal(step.text, hint, device)
    return ""
