"""What the cache holds, and what of it can go: nothing that this ComFuse serves, and nothing that is in use.

Of ``kernels`` those entries go that another version of ComFuse, nvcc or CUTLASS made and that were not asked
for in some days; a pack goes with the last entry that names it.  What a killed build left goes at any age,
what a failed build or damage left after those days.  Every entry is removed with its lock held, so that no
builder is disturbed; a process that has loaded a library keeps it when its file is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from comfuse import settings
from comfuse.build import binding, cache, headers, packs
from comfuse.build.compile import toolchain
from comfuse.errors import CacheError, ToolchainError

_DAY = 86400.0


@dataclass(frozen=True)
class Item:
    """Something in the cache.

    Attributes:
        kind: ``"kernel"``, ``"killed build"``, ``"failed build"`` or ``"damaged entry"``.
        path: its folder or file.
        bytes: what it takes on the disk.
        used: when it was last asked for, to a day, or made; in seconds since the epoch.
        current: whether this ComFuse, with the compiler that is found here, may ask for it.
    """

    kind: str
    path: Path
    bytes: int
    used: float
    current: bool = False

    @property
    def days(self) -> float:
        """Since it was used."""
        return max(0.0, time.time() - self.used) / _DAY


def items() -> list[Item]:
    """All that the cache holds, but for its locks, which are empty files.  Starts no compiler."""
    tools = _tools()
    found = []
    for folder in _folders("kernels"):
        manifest = _manifest(folder)
        found.append(_item("kernel", folder, _is_current(folder.name, manifest, tools)))
    for kind, room in (
        ("killed build", "building"), ("failed build", "failed"), ("damaged entry", "quarantine")
    ):  # fmt: skip
        # A build that is under way holds its lock, which is looked at when it would be removed.
        found += [_item(kind, folder) for folder in _folders(room)]
    return found


def removable(days: float) -> list[Item]:
    """Those of :func:`items` that :func:`remove` is for, in the order in which they can go."""
    there = items()
    going = [i for i in there if i.kind == "kernel" and not i.current and i.days >= days]
    gone = {item.path for item in going}
    needed = {_library(i.path) for i in there if i.kind == "kernel" and i.path not in gone}
    going = [item for item in going if item.path not in needed]
    gone = {item.path for item in going}
    # What names a pack goes before it.
    going.sort(key=lambda item: _library(item.path) in (None, item.path))
    going += [i for i in there if i.kind in ("failed build", "damaged entry") and i.days >= days]
    return going + [i for i in there if i.kind == "killed build" and not _is_locked(_entry_of(i))]


def remove(item: Item) -> bool:
    """Removes an item; False if it is in use, was asked for meanwhile, or is gone.

    Raises:
        CacheError: the cache cannot be written.
    """
    try:
        if item.kind in ("failed build", "damaged entry"):
            shutil.rmtree(item.path)
            return True
        with _if_free(_entry_of(item)) as free:
            if not free or (item.kind == "kernel" and _is_asked_for(item)):
                return False
            if item.kind == "killed build":
                shutil.rmtree(item.path)
            else:
                _discard(item.path)
    except FileNotFoundError:  # another process was faster
        return False
    except (OSError, NotImplementedError) as e:  # the latter is what filelock makes of ENOSYS
        raise CacheError(f"cannot remove {item.path}: {e}; the cache has to be writable, with locks") from e
    return True


def _is_asked_for(item: Item) -> bool:
    """Whether an entry is used since it was looked at, itself or, of a pack, another that names it."""
    if item.path.name.startswith(packs.PREFIX):
        return any(folder != item.path and _library(folder) == item.path for folder in _folders("kernels"))
    return _used(item.path) != item.used


def _discard(folder: Path) -> None:
    """Takes an entry away in one step, so that nobody finds a part of it."""
    scratch = settings.cache_dir() / "building" / f"{folder.name}.{uuid.uuid4().hex[:8]}"
    scratch.parent.mkdir(exist_ok=True)
    os.replace(folder, scratch)
    shutil.rmtree(scratch)


def _item(kind: str, path: Path, current: bool = False) -> Item:
    size = sum(map(_size, path.rglob("*"))) if path.is_dir() else 0
    return Item(kind, path, size, _used(path), current)


def _used(path: Path) -> float:
    """When an entry was last asked for; of all else when it was made, or put aside."""
    put_aside = path.name.rpartition(".")[2]
    if path.parent.name == "quarantine" and put_aside.isdecimal():
        return int(put_aside) / 1e9
    for stamped in (path / cache.MANIFEST, path):
        try:
            return stamped.stat().st_mtime
        except OSError:
            continue
    return time.time()  # another process has removed it


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _folders(room: str) -> list[Path]:
    return sorted(path for path in (settings.cache_dir() / room).glob("*") if path.is_dir())


def _entry_of(item: Item) -> str:
    """The entry whose lock is about an item."""
    if item.kind == "killed build":
        return item.path.name.rpartition(".")[0]
    return item.path.name


def _manifest(folder: Path) -> dict[str, Any]:
    """An entry's manifest; empty if it cannot be read."""
    try:
        read = json.loads((folder / cache.MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _library(folder: Path) -> Path | None:
    """The entry that has an entry's library: itself, or a pack; None if it does not say."""
    library = _manifest(folder).get("library")
    return Path(os.path.normpath(folder / library)).parent if isinstance(library, str) else None


def _tools() -> dict[str, str]:
    """Versions of the compiler and CUTLASS; empty where there are none, and entries of any serve."""
    try:
        toolkit, cutlass = toolchain()
    except ToolchainError:
        return {}
    return {"nvcc": toolkit.version, "cutlass": cutlass.version}


def _is_current(entry: str, manifest: dict[str, Any], tools: dict[str, str]) -> bool:
    if manifest.get("name") == binding.NAME:
        return entry == binding.entry()
    includes, made_by = manifest.get("includes"), manifest.get("toolchain")
    if not isinstance(includes, list) or not isinstance(made_by, dict):
        return False
    text = "".join(f"#include <{name}>\n" for name in includes)
    if headers.digest(text) != manifest.get("headers"):
        return False
    return all(made_by.get(tool) == version for tool, version in tools.items())


def _is_locked(entry: str) -> bool:
    """Whether another process holds an entry's lock, or nobody can."""
    if not cache.lock_path(entry).exists():
        return False
    try:
        with _if_free(entry) as free:
            return not free
    except (OSError, NotImplementedError):
        return True


@contextmanager
def _if_free(entry: str) -> Iterator[bool]:
    """Holds an entry's lock, unless another process does."""
    path = cache.lock_path(entry)
    path.parent.mkdir(exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
