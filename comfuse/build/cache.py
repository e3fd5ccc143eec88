"""Built libraries on disk, addressed by content.

    <cache>/kernels/<name>-<key>/     <name>.so  <name>.cu  build.log  manifest.json; of a kernel that was
                                      built into a pack the manifest alone, which names the pack's library
    <cache>/locks/                    one file lock an entry
    <cache>/building/                 private folders of builds under way
    <cache>/failed/<name>/            source and log of the last build that failed
    <cache>/quarantine/               entries that did not match their manifest

An entry appears by one atomic rename, complete or not at all.  A lock belongs to a process and goes with it,
so a killed builder leaves at most a folder below ``building``, which the next holder of its lock deletes.
Nothing else goes by itself: :mod:`comfuse.build.prune`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from comfuse import settings
from comfuse.errors import CacheError

_LOGGER = logging.getLogger("comfuse")
MANIFEST = "manifest.json"
_STAMP_SECONDS = 86400.0
_ELSEWHERE = "make room, or set COMFUSE_CACHE_DIR to another folder"


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel library on disk.

    Attributes:
        name: the kernel's stem; the library exports ``cf_launch_<name>`` and its like.
        digest: SHA-256 of the library file.
        path: the library file.
        info: its manifest: spec text, plan facts, registers, spills, ptxas messages, toolchain, build time.
    """

    name: str
    digest: str
    path: Path
    info: dict[str, Any]


def hash_text(*parts: str) -> str:
    """SHA-256 over strings, each closed by a NUL so that no two lists of parts collide."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode())
        total.update(b"\0")
    return total.hexdigest()


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry_path(entry: str) -> Path:
    return settings.cache_dir() / "kernels" / entry


def lock_path(entry: str) -> Path:
    return settings.cache_dir() / "locks" / f"{entry}.lock"


def find(entry: str) -> BuiltKernel | None:
    """The entry if it is there and intact.  One that is damaged is moved away and reported, once.

    Raises:
        CacheError: it is damaged and cannot be moved away.
    """
    folder = entry_path(entry)
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        _stamp(folder / MANIFEST)
        library = Path(os.path.normpath(folder / manifest["library"]))  # that of a pack is in another entry
        digest = hash_file(library)
        if digest != manifest["digest"]:
            raise ValueError(f"{library} does not match its digest")
        return BuiltKernel(manifest["name"], digest, library, manifest)
    except FileNotFoundError as e:
        if not folder.is_dir():
            return None
        reason = str(e)
    except (OSError, ValueError, KeyError, TypeError) as e:
        reason = str(e)
    _quarantine(folder, reason)
    return None


def _stamp(manifest: Path) -> None:
    """Notes in the time of a manifest, once a day, that its entry is used."""
    with suppress(OSError):  # the cache may be read-only
        if time.time() - manifest.stat().st_mtime > _STAMP_SECONDS:
            os.utime(manifest)


def find_any(prefix: str) -> BuiltKernel | None:
    """The newest intact entry whose name begins with ``prefix``."""
    root = settings.cache_dir() / "kernels"
    folders = sorted(root.glob(f"{prefix}*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    return next((built for folder in folders if (built := find(folder.name)) is not None), None)


def _quarantine(folder: Path, reason: str) -> None:
    target = settings.cache_dir() / "quarantine" / f"{folder.name}.{time.time_ns()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder, target)
    except OSError as e:
        if folder.is_dir():  # else another process was faster
            raise CacheError(
                f"cache entry {folder} is damaged ({reason}) and cannot be moved away: {e}; delete it, or "
                "set COMFUSE_CACHE_DIR to a folder that is writable"
            ) from e
        return
    _LOGGER.warning("cache entry %s is damaged (%s); moved to %s", folder.name, reason, target)


@contextmanager
def locked(entry: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the entry's lock; calls ``waiting`` while another process has it.

    Raises:
        CacheError: the cache is not writable, or the lock was not free within ``COMFUSE_BUILD_TIMEOUT``.
    """
    path = lock_path(entry)
    limit = settings.build_timeout()
    deadline = time.monotonic() + limit
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        while True:
            try:
                lock.acquire(timeout=0.1)
                break
            except filelock.Timeout:
                if time.monotonic() > deadline:
                    raise CacheError(
                        f"{entry} is being built by another process, which did not finish within {limit:g} s "
                        f"(COMFUSE_BUILD_TIMEOUT); lock file {path}"
                    ) from None
                waiting()
    except OSError as e:
        raise CacheError(
            f"cannot lock {path}: {e}; set COMFUSE_CACHE_DIR to a folder that is writable"
        ) from e
    except NotImplementedError as e:  # what filelock makes of ENOSYS
        raise CacheError(
            f"cannot lock {path}: its file system has no locks; set COMFUSE_CACHE_DIR to a folder on another"
        ) from e
    try:
        yield
    finally:
        lock.release()


@contextmanager
def private_folder(entry: str) -> Iterator[Path]:
    """An empty folder to build an entry in; call with the entry's lock held.  It is gone afterwards."""
    root = settings.cache_dir() / "building"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left_behind in root.glob(f"{entry}.*"):  # by a builder that was killed: we hold its lock
            shutil.rmtree(left_behind, ignore_errors=True)
        folder = root / f"{entry}.{uuid.uuid4().hex[:8]}"
        folder.mkdir()
    except OSError as e:
        raise CacheError(f"cannot write below {root}: {e}; set COMFUSE_CACHE_DIR to a writable folder") from e
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def told_where(what: str, folder: Path) -> Iterator[None]:
    """Raises CacheError for what the system has against building ``what`` in ``folder``."""
    try:
        yield
    except OSError as e:  # no space left, above all
        raise CacheError(f"{what} cannot be built in {folder}: {e}; {_ELSEWHERE}") from e


def publish(entry: str, files: dict[str, Path], manifest: dict[str, Any]) -> BuiltKernel:
    """Makes an entry of the given files (by their names in it) and its manifest; call with the lock held.

    ``manifest`` must have ``name`` and ``library``; ``digest`` and ``created`` are added.
    """
    library = manifest["library"]
    manifest = {**manifest, "digest": hash_file(files[library]), "created": time.time()}
    return _publish(entry, files, manifest, files[library].parent / "entry")


def publish_reference(entry: str, built: BuiltKernel, manifest: dict[str, Any]) -> BuiltKernel:
    """The entry of a kernel that is in the library of another entry; made now if it is not there.

    ``manifest`` must have ``name``; all else that it does not have is that of ``built``.
    """
    library = os.path.relpath(built.path, entry_path(entry))
    with locked(entry, lambda: None):
        found = find(entry)
        if found is not None:
            return found
        with private_folder(entry) as folder:
            return _publish(entry, {}, {**built.info, **manifest, "library": library}, folder / "entry")


def _publish(entry: str, files: dict[str, Path], manifest: dict[str, Any], scratch: Path) -> BuiltKernel:
    folder = entry_path(entry)
    try:
        scratch.mkdir()
        for name, path in files.items():
            shutil.copy2(path, scratch / name)
        (scratch / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
        for path in scratch.iterdir():
            _sync(path)
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch, folder)
        _sync(folder.parent)
    except OSError as e:
        raise CacheError(f"cannot publish {folder}: {e}; {_ELSEWHERE}") from e
    library = Path(os.path.normpath(folder / manifest["library"]))
    return BuiltKernel(manifest["name"], manifest["digest"], library, manifest)


def keep_failed(name: str, files: dict[str, Path]) -> Path:
    """Keeps the files of a failed build where an error message can point to; returns their folder."""
    folder = settings.cache_dir() / "failed" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for target, path in files.items():
        if path.is_file():
            shutil.copy2(path, folder / target)
    return folder


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
