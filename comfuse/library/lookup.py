"""Kernels from libraries that were built ahead of time: found, checked and loaded when they are asked for."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from comfuse import library, settings
from comfuse.build.cache import hash_file
from comfuse.build.folders import library_folders
from comfuse.errors import LoadError
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import gpus
from comfuse.generator.spec import FusedSpec
from comfuse.library import LoadedKernel, manifest
from comfuse.library.manifest import File, Kernel, Manifest
from comfuse.library.signature import signature

_LOGGER = logging.getLogger("comfuse")
_LOCK = threading.RLock()
_REFUSALS: Counter[tuple[str, str]] = Counter()
_ABSENT = f"it is no kernel library: there is no {manifest.NAME} in it"


@dataclass
class Shelf:
    """A kernel library in this process.

    Attributes:
        manifest: what it holds; None if that cannot be read, or is not there.
        unfit: why this ComFuse uses nothing of it, or an empty string.
    """

    folder: Path
    manifest: Manifest | None
    unfit: str
    _checked: dict[str, str] = field(default_factory=dict)  # what is wrong with a file, by its name

    def damage(self, file: File) -> str:
        """What is wrong with a file, looked at once."""
        if file.name not in self._checked:
            self._checked[file.name] = manifest.damage_of(self.folder, file)
        return self._checked[file.name]


@dataclass(frozen=True)
class _Built:
    """What :func:`comfuse.library.load` takes."""

    name: str
    path: Path


def kernel(spec: FusedSpec | ChainSpec, rows: tuple[int, int], gpu: str) -> LoadedKernel | None:
    """The first library's kernel that serves this program for all these numbers of rows, loaded.

    Args:
        rows: the smallest and the largest number of rows.
        gpu: the planner's name of the GPU, with its number of SMs if it is another ("h100:114").

    One that is there but does not fit is passed over; that is logged once and counted (:func:`refusals`).
    """
    for shelf in shelves():
        found = _ask(shelf, spec, rows, gpu)
        if isinstance(found, LoadedKernel):
            return found
        if found:
            _refuse(shelf.folder, found)
    return None


def why_not(spec: FusedSpec | ChainSpec, rows: tuple[int, int], gpu: str) -> list[tuple[Path, str]]:
    """For each library why it has no kernel for a program; an empty string where it has one."""
    answers = []
    for shelf in shelves():
        found = _ask(shelf, spec, rows, gpu)
        reason = "" if isinstance(found, LoadedKernel) else found or shelf.unfit or "it has not this program"
        answers.append((shelf.folder, reason))
    return answers


def _ask(shelf: Shelf, spec: FusedSpec | ChainSpec, rows: tuple[int, int], gpu: str) -> LoadedKernel | str:
    """A library's kernel, or why it has none that fits; nothing if it does not have the program at all."""
    known = _candidates(shelf, spec, gpu)
    if not known or shelf.unfit:
        return shelf.unfit if known else ""
    asked = f"{rows[0]} to {rows[1]}"
    serving = [k for k in known if k.rows[0] <= rows[0] and rows[1] <= k.rows[1]]
    if not serving:
        served = ", ".join(f"{low} to {high}" for low, high in sorted({k.rows for k in known}))
        return f"its kernels serve {served} rows, not {asked}"
    reason = ""
    for candidate in serving:
        found = _misfit(candidate, gpu) or _load(shelf, candidate)
        if isinstance(found, LoadedKernel):
            return found
        reason = reason or found
    return reason


def problems(folder: Path) -> list[str]:
    """All that is wrong with the library in ``folder``: each file is read, each kernel loaded."""
    try:
        shelf = Shelf(folder, read := manifest.read(folder), read.unfit())
    except FileNotFoundError:
        return [_ABSENT]
    except LoadError as e:
        return [str(e)]
    if shelf.unfit:
        return [shelf.unfit]
    outcomes = [_load(shelf, candidate) for candidate in read.kernels]
    said = [f"{name} is damaged: {reason}" for name, reason in manifest.damage(folder, read)]
    said += [outcome for outcome in outcomes if isinstance(outcome, str)]
    return list(dict.fromkeys(said))


def _misfit(candidate: Kernel, gpu: str) -> str:
    """Why a kernel cannot run on a GPU, or an empty string."""
    processors = gpus.find(gpu).processors
    if processors < candidate.processors:
        return f"its kernel needs {candidate.processors} SMs at once, this GPU has {processors}"
    return ""


def shelves() -> list[Shelf]:
    """The libraries that there are, in the order in which they are asked.  Read again when they change.

    A folder that ``COMFUSE_LIBRARY`` names and that is no library is among them, as one that is unfit.
    """
    named = settings.library()
    found = (_shelf(folder, expected=folder in named) for folder in library_folders())
    return [shelf for shelf in found if shelf is not None]


def refusals() -> dict[tuple[str, str], int]:
    """How often each (library, reason) kept a library's kernel from being used, in this process."""
    with _LOCK:
        return dict(_REFUSALS)


def identity() -> list[str]:
    """Hashes of all libraries, or why one cannot be read: what is found in them changes when these do."""
    return [
        shelf.unfit if shelf.manifest is None else hash_file(shelf.folder / manifest.NAME)
        for shelf in shelves()
    ]


_SHELVES: dict[Path, tuple[tuple[int, int] | None, Shelf]] = {}


def versions() -> tuple[tuple[Path, tuple[int, int] | None], ...]:
    """Where libraries are looked for, and what changes when they do, in a few microseconds."""
    return tuple((folder, _version(folder)) for folder in library_folders())


def _version(folder: Path) -> tuple[int, int] | None:
    try:
        stat = (folder / manifest.NAME).stat()
    except OSError:
        return None  # no library there
    return stat.st_mtime_ns, stat.st_size


def _shelf(folder: Path, *, expected: bool) -> Shelf | None:
    version = _version(folder)
    if version is None and not expected:
        return None
    with _LOCK:
        if folder not in _SHELVES or _SHELVES[folder][0] != version:
            _SHELVES[folder] = version, _read(folder)
        return _SHELVES[folder][1]


def _read(folder: Path) -> Shelf:
    try:
        read = manifest.read(folder)
    except (LoadError, FileNotFoundError) as e:
        reason = str(e) if isinstance(e, LoadError) else f"COMFUSE_LIBRARY names it, but {_ABSENT}"
        _refuse(folder, reason)
        return Shelf(folder, None, reason)
    return Shelf(folder, read, read.unfit())


def _candidates(shelf: Shelf, spec: FusedSpec | ChainSpec, gpu: str) -> list[Kernel]:
    """The kernels of a program, those first that were planned for this GPU."""
    if shelf.manifest is None:
        return []
    found = shelf.manifest.by_signature.get(signature(spec), [])
    return sorted(found, key=lambda k: k.gpu != gpu)


def _load(shelf: Shelf, candidate: Kernel) -> LoadedKernel | str:
    """The kernel, or why it cannot be had."""
    assert shelf.manifest is not None
    file = shelf.manifest.files_by_name.get(candidate.file)
    damage = "its manifest does not list it" if file is None else shelf.damage(file)
    if damage:
        return f"{candidate.file} is damaged: {damage}"
    try:
        return library.load(_Built(candidate.name, shelf.folder / candidate.file))
    except LoadError as e:
        return str(e)


def _refuse(folder: Path, reason: str) -> None:
    with _LOCK:
        _REFUSALS[str(folder), reason] += 1
        first = _REFUSALS[str(folder), reason] == 1
    if first:
        _LOGGER.warning("kernel library %s not used: %s", folder, reason)
