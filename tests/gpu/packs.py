"""Builds many kernels a translation unit, which takes a third of the time: parsing the headers is most of it.

The packs go through the product's own build and cache.  A small file for each kernel says in which pack it
is, so that it is found again whatever else is built beside it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from comfuse import settings
from comfuse.build import build, cache, headers, jobs_that_fit
from comfuse.build.compile import cuda_flags
from comfuse.generator.emit import KernelSource

LARGEST = 8  # kernels of a pack: more would leave processors idle at the end
_PREAMBLE = re.compile(r"(#include <comfuse/sm90/fused_(?:gemm|chain).hpp>\n)\n*namespace cf = comfuse;\n")


@dataclass(frozen=True)
class Packed:
    """A kernel in the library of its pack; what comfuse.library.load takes."""

    name: str
    path: Path


@dataclass(frozen=True)
class _Pack:
    """What comfuse.build takes."""

    name: str
    text: str
    plan: None = None


def find(source: KernelSource) -> Packed | None:
    """The kernel, if a pack with it was built from the same headers with the same flags."""
    try:
        path = settings.cache_dir() / json.loads(_note(source).read_text())["library"]
    except (OSError, ValueError, KeyError):
        return None
    return Packed(source.name, path) if path.is_file() else None


def build_all(sources: Iterable[KernelSource], say: Callable[[str], None]) -> dict[str, Packed | Exception]:
    """Builds what is not built yet, each name once: the libraries, or the errors, by name.

    Where a pack does not compile its kernels are built one by one.  ``say`` gets a line now and then.
    """
    unique = {source.name: source for source in sources}
    results: dict[str, Packed | Exception] = {
        name: found for name, source in unique.items() if (found := find(source)) is not None
    }
    missing = [source for name, source in unique.items() if name not in results]
    jobs = min(jobs_that_fit(), os.cpu_count() or 1)
    size = max(1, min(LARGEST, len(missing) // (2 * jobs)))
    begin = said = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        pending: dict[Future[Path], Sequence[KernelSource]] = {}
        for i in range(0, len(missing), size):
            pack = missing[i : i + size]
            pending[pool.submit(_build, pack)] = pack
        while pending:
            future = next(as_completed(pending))
            pack = pending.pop(future)
            try:
                path = future.result()
                results |= {source.name: Packed(source.name, path) for source in pack}
            except Exception as e:
                if len(pack) > 1:
                    say(f"a pack of {len(pack)} does not compile: its kernels one by one")
                    pending |= {pool.submit(_build, [source]): [source] for source in pack}
                else:
                    results[pack[0].name] = e
                    say(f"{pack[0].name}: {type(e).__name__}: {e}")
            now = time.monotonic()
            if now - said > 5 or not pending:
                said = now
                built = len(results) - (len(unique) - len(missing))
                say(f"{built} of {len(missing)} kernels after {now - begin:.0f} s, {jobs} x {size} at a time")
    return results


def _build(sources: Sequence[KernelSource]) -> Path:
    bodies, includes = [], set()
    for i, source in enumerate(sources):
        includes |= set(_PREAMBLE.findall(source.text))
        body, count = _PREAMBLE.subn("", source.text)
        assert count == 1, f"{source.name} does not begin as kernels do"
        bodies.append(f"namespace pack{i} {{\n{body}}}  // namespace pack{i}\n")
    text = "".join(sorted(includes)) + "\nnamespace cf = comfuse;\n" + "\n".join(bodies)
    path = build(_Pack(f"cf_pack_{cache.hash_text(text)[:12]}", text)).path
    for source in sources:
        note = _note(source)
        note.parent.mkdir(parents=True, exist_ok=True)
        private = note.with_suffix(f".{os.getpid()}")
        # Relative, so that a cache built elsewhere can be brought along.
        private.write_text(json.dumps({"library": str(path.relative_to(settings.cache_dir()))}))
        private.replace(note)
    return path


def _note(source: KernelSource) -> Path:
    key = cache.hash_text(source.text, headers.digest(source.text), *cuda_flags())
    return settings.cache_dir() / "packs" / f"{source.name}-{key[:16]}.json"
