"""Many kernels a library, which saves much time: parsing the headers is most of a compile.

A pack goes through :func:`comfuse.build.build` like a kernel.  Each of its kernels then has an entry of its
own in the cache, so that it is found again whatever else was built beside it, and a build that was cut off
goes on where it stopped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from comfuse.build import Source, build, cache, entry_of, find_built, jobs_that_fit, manifest_of
from comfuse.build.cache import BuiltKernel
from comfuse.build.parallel import Task, run_all
from comfuse.build.progress import Display, Progress
from comfuse.errors import BuildError, ComFuseError

_LOGGER = logging.getLogger("comfuse")
PREFIX = "cf_pack_"  # of the names of packs
LARGEST = 8  # kernels of a pack: more would leave processors idle at the end
_BYTES_A_PACK = 2e9  # of memory, while it is compiled
_PREAMBLE = re.compile(r"(#include <comfuse/sm90/fused_(?:gemm|chain).hpp>\n)\n*namespace cf = comfuse;\n")


@dataclass(frozen=True)
class Pack:
    """Several kernels as one translation unit; what :func:`comfuse.build.build` takes."""

    name: str
    text: str
    plan: None = None


def combined(sources: Sequence[Source]) -> Pack:
    """The translation unit that exports all kernels of ``sources``, which are emitted ones."""
    bodies, includes = [], set()
    for i, source in enumerate(sources):
        includes |= set(_PREAMBLE.findall(source.text))
        body, count = _PREAMBLE.subn("", source.text)
        if count != 1:
            raise ValueError(f"{source.name} does not begin as kernels do")
        bodies.append(f"namespace pack{i} {{\n{body}}}  // namespace pack{i}\n")
    text = "".join(sorted(includes)) + "\nnamespace cf = comfuse;\n\n" + "\n".join(bodies)
    return Pack(f"{PREFIX}{cache.hash_text(text)[:12]}", text)


def build_all(
    sources: Iterable[Source], *, jobs: int | None = None, say: Callable[[str], None] | None = None
) -> dict[str, BuiltKernel | ComFuseError]:
    """Builds what is not built yet, each name once: the kernels, or the errors, by name.

    Where a pack does not compile, its kernels are built one by one.

    Args:
        jobs: packs at once; ``COMFUSE_MAX_JOBS``, processors and memory bound it if None.
        say: gets a line about progress now and then; it is logged at INFO if None.

    Raises:
        KeyboardInterrupt: builds under way and their compilers have been ended; what was built is kept.
    """
    unique = {source.name: source for source in sources}
    results: dict[str, BuiltKernel | ComFuseError] = {}
    missing = []
    for name, source in unique.items():
        found = find_built(source)
        if found is None:
            missing.append(source)
        else:
            results[name] = found
    jobs = jobs or jobs_that_fit(_BYTES_A_PACK)
    size = min(LARGEST, -(-len(missing) // jobs))
    packs = [missing[i : i + size] for i in range(0, len(missing), max(1, size))]
    refused = []
    for pack, outcome in zip(packs, _build(packs, jobs, say), strict=True):
        if isinstance(outcome, BuildError) and len(pack) > 1:
            _LOGGER.warning("a pack of %d kernels does not compile: they are built one by one", len(pack))
            refused += pack
        else:
            results |= _by_name(pack, outcome)
    alone = [[source] for source in refused]
    for pack, outcome in zip(alone, _build(alone, jobs, say), strict=True):
        results |= _by_name(pack, outcome)
    return {name: results[name] for name in unique}


def _by_name(
    pack: Sequence[Source], outcome: list[BuiltKernel] | ComFuseError
) -> dict[str, BuiltKernel | ComFuseError]:
    if isinstance(outcome, ComFuseError):
        return {source.name: outcome for source in pack}
    return {built.name: built for built in outcome}


def _build(
    packs: Sequence[Sequence[Source]], jobs: int, say: Callable[[str], None] | None
) -> list[list[BuiltKernel] | ComFuseError]:
    tasks = [_task(pack) for pack in packs]
    if not tasks:
        return []
    expected = 6 + 2.0 * max(map(len, packs))
    with Display([t.name for t in tasks], jobs, what="pack", expected=expected, say=say) as display:
        return run_all(tasks, jobs=jobs, progress=display)


def _task(pack: Sequence[Source]) -> Task[list[BuiltKernel]]:
    if len(pack) == 1:
        return Task(pack[0].name, lambda progress: [build(pack[0], progress=progress)])
    together = combined(pack)

    def run(progress: Progress) -> list[BuiltKernel]:
        built = build(together, progress=progress)
        return [cache.publish_reference(entry_of(source), built, manifest_of(source)) for source in pack]

    return Task(together.name, run)
