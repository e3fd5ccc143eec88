"""Builds a kernel library: catalogues in, a folder out that serves processes without a compiler."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from comfuse import settings
from comfuse.build import binding, packs
from comfuse.build.cache import BuiltKernel, hash_file
from comfuse.build.compile import cuda_flags, toolchain
from comfuse.errors import BuildError, CacheError, CatalogueError, ComFuseError, PlanError
from comfuse.generator.emit import KernelSource
from comfuse.generator.plan import KernelPlan
from comfuse.generator.plan.chain import ChainPlan
from comfuse.library import abi, manifest
from comfuse.library.catalogue import Catalogue, Entry
from comfuse.library.manifest import File, Kernel, Manifest
from comfuse.library.rows import classes_on, served
from comfuse.library.signature import signature
from comfuse.library.source import source_of
from comfuse.version import __version__

#: Of a plan, what a manifest says.
_FACTS = (
    "tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "schedule", "stages", "tile_slots", "scope",
    "max_m",
)  # fmt: skip

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Wanted:
    """A kernel of the library to be."""

    entry: Entry
    gpu: str
    rows: tuple[int, int]
    source: KernelSource


def build_library(
    catalogues: Sequence[Catalogue],
    folder: Path,
    *,
    jobs: int | None = None,
    say: Say | None = None,
    with_binding: bool = True,
) -> Manifest:
    """Builds all kernels of ``catalogues`` into ``folder``, which becomes or replaces a library.

    What is in the cache already is not built again, so that a build that was cut off goes on where it
    stopped.  The library that was in the folder stays as it is until the new one is complete.  Where several
    processes build one in the same folder, it is the last one's.

    Args:
        jobs: packs of kernels at once; ``COMFUSE_MAX_JOBS``, processors and memory bound it if None.
        say: gets a line about progress now and then; it is logged at INFO if None.
        with_binding: whether the library has the C++ binding too, without which it needs one elsewhere.

    Returns:
        Its manifest.  What the planner or the compiler refused is in ``refused``.

    Raises:
        ToolchainError, JitDisabledError, CacheError: nothing can be built, or the folder cannot be written.
        PlanError, BuildError: the planner or the compiler refused every kernel.
        CatalogueError: no program has any of the classes of rows that the catalogues ask for.
        KeyboardInterrupt: the builds under way have been ended.
    """
    toolkit, cutlass = toolchain()
    wanted, refused = _plans(catalogues)
    if not wanted:
        raise _nothing(catalogues, refused)
    with _held(folder):  # fails now if it cannot be written, not after minutes
        pass
    built = packs.build_all([w.source for w in wanted], jobs=jobs, say=say)
    _raise_unless_some(built.values())
    shared = binding.build_binding() if with_binding else None
    files: dict[Path, File] = {}
    kernels: list[Kernel] = []
    with _held(folder):
        for w in wanted:
            kernel = built[w.source.name]
            if isinstance(kernel, ComFuseError):
                refused.append(_refusal(w.entry, w.rows, str(kernel)))
                continue
            if kernel.path not in files:
                files[kernel.path] = _added(folder, kernel)
            kernels.append(_kernel(w, files[kernel.path].name))
        if shared is not None:
            _copy(shared, folder / binding.prebuilt_path().name)
        made = Manifest(
            abi_version=abi.ABI_VERSION,
            device_code=manifest.device_code(),
            comfuse=__version__,
            toolchain={"nvcc": toolkit.version, "cutlass": cutlass.version, "flags": list(cuda_flags())},
            catalogues=tuple(c.name for c in catalogues),
            files=tuple(files.values()),
            kernels=tuple(kernels),
            refused=tuple(refused),
        )
        made.write(folder)
        _tidy(folder, made)
    return made


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Makes the folder, and keeps other processes from building in it meanwhile.

    Raises:
        CacheError: it cannot be written, or another process wrote in it for longer than
            ``COMFUSE_BUILD_TIMEOUT``.
    """
    limit = settings.build_timeout()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / f"{manifest.NAME}.lock", timeout=limit):
            yield
    except filelock.Timeout as e:
        raise CacheError(
            f"another process has been writing the library {folder} for {limit:g} s (COMFUSE_BUILD_TIMEOUT)"
        ) from e
    except (OSError, NotImplementedError) as e:  # the latter is what filelock makes of ENOSYS
        raise CacheError(f"cannot write the library {folder}: {e}") from e


def _nothing(catalogues: Sequence[Catalogue], refused: Sequence[dict[str, Any]]) -> ComFuseError:
    """Why there is nothing to compile."""
    if not refused:
        names = ", ".join(c.name for c in catalogues)
        return CatalogueError(names, "none of its programs has any of the classes of rows that are asked for")
    error = PlanError(f"{refused[0]['label']}: {refused[0]['reason']}")
    error.add_note(f"the planner refuses all of {len(refused)} kernels; there is no library of them")
    return error


def _raise_unless_some(built: Iterable[BuiltKernel | ComFuseError]) -> None:
    """Raises what is the machine's fault, not a kernel's; and a kernel's error if there is nothing else."""
    outcomes = list(built)
    errors = [outcome for outcome in outcomes if isinstance(outcome, ComFuseError)]
    for error in errors:
        if not isinstance(error, BuildError):
            raise error
    if errors and len(errors) == len(outcomes):
        errors[0].add_note(f"not one of {len(errors)} kernels compiles; there is no library of them")
        raise errors[0]


def sources(catalogues: Iterable[Catalogue]) -> list[KernelSource]:
    """The kernels of some catalogues, each once."""
    wanted, _ = _plans(catalogues)
    return list({w.source.name: w.source for w in wanted}.values())


def _plans(catalogues: Iterable[Catalogue]) -> tuple[list[_Wanted], list[dict[str, Any]]]:
    """What is to be built, each program and class of rows once, and what the planner refuses."""
    wanted: dict[tuple[str, str, tuple[int, int]], _Wanted] = {}
    refused = []
    for catalogue in catalogues:
        for entry in catalogue.entries:
            classes = classes_on(entry.spec, catalogue.gpu)
            for hint in entry.hints(catalogue.gpu):
                rows = served(hint, classes)
                try:
                    source = source_of(entry.spec, catalogue.gpu, hint)
                except PlanError as e:
                    refused.append(_refusal(entry, rows, str(e)))
                    continue
                key = (signature(entry.spec), catalogue.gpu, rows)
                wanted.setdefault(key, _Wanted(entry, catalogue.gpu, rows, source))
    return list(wanted.values()), refused


def _refusal(entry: Entry, rows: tuple[int, int], reason: str) -> dict[str, Any]:
    return {"label": entry.label, "rows": rows, "reason": reason}


def _kernel(w: _Wanted, file: str) -> Kernel:
    made = w.source.plan
    return Kernel(
        name=w.source.name,
        file=file,
        label=w.entry.label,
        spec=w.entry.spec.text(),
        signature=signature(w.entry.spec),
        gpu=w.gpu,
        rows=w.rows,
        processors=_processors(made, w.rows[1]),
        plan={fact: getattr(made, fact) for fact in _FACTS if hasattr(made, fact)}
        | {"predicted_us": round(made.predicted_us, 1)},
    )


def _processors(made: KernelPlan | ChainPlan, rows: int) -> int:
    """SMs that hold all tiles which wait for each other."""
    if isinstance(made, ChainPlan) or not made.program.waits:
        return 1
    of_row_blocks = made.shape.clusters_n(made.spec.n) * made.shape.cluster_size  # those of a cluster
    return of_row_blocks if made.max_m is None else of_row_blocks * made.shape.clusters_m(rows)


def _added(folder: Path, kernel: BuiltKernel) -> File:
    """A built file's copy in the library; named by content, so that no older one is ever overwritten."""
    name = f"{kernel.path.stem}-{kernel.digest[:8]}.so"
    _copy(kernel.path, folder / name)
    return File(name, kernel.digest, kernel.path.stat().st_size, kernel.info["ptxas"])


def _copy(source: Path, target: Path) -> None:
    """Copies in one step; not if the target has the same content already."""
    if target.is_file() and hash_file(target) == hash_file(source):
        return
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, scratch)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)


def _tidy(folder: Path, made: Manifest) -> None:
    """Removes what an earlier library or a build that was killed left in the folder."""
    kept = {file.name for file in made.files} | {binding.prebuilt_path().name}
    for path in (*folder.glob("cf_*.so*"), *folder.glob(f"{binding.NAME}-*.so*")):
        if path.name not in kept:
            path.unlink(missing_ok=True)
