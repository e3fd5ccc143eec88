"""Which of our headers a source includes, and a hash over all of them."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from comfuse.build.toolkit import INCLUDE_DIR

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def included(text: str, folder: Path | None = None) -> tuple[Path, ...]:
    """Our headers that ``text`` includes, directly or not, sorted.

    Names that are not below ``csrc/include`` (CUDA's, CUTLASS's, the system's) are left out: their versions
    are part of the cache key instead.  Includes behind ``#if`` count too, which can only cost a rebuild.
    """
    found: set[Path] = set()
    pending = list(_direct(text, folder))
    while pending:
        header = pending.pop()
        if header not in found:
            found.add(header)
            pending.extend(_direct(_read(header), header.parent))
    return tuple(sorted(found))


def direct(text: str) -> list[str]:
    """The names of our headers that ``text`` itself includes, sorted."""
    return sorted({header.relative_to(INCLUDE_DIR).as_posix() for header in _direct(text, None)})


def digest(text: str) -> str:
    """SHA-256 over the names and contents of the headers that ``text`` includes."""
    total = hashlib.sha256()
    for header in included(text):
        name = header.relative_to(INCLUDE_DIR).as_posix()
        total.update(f"{name}\0{hashlib.sha256(_read(header).encode()).hexdigest()}\n".encode())
    return total.hexdigest()


def _direct(text: str, folder: Path | None) -> list[Path]:
    headers = []
    for quote, name in _INCLUDE.findall(text):
        for base in ([folder] if quote == '"' and folder is not None else []) + [INCLUDE_DIR]:
            path = (base / name).resolve()
            if path.is_relative_to(INCLUDE_DIR) and path.is_file():
                headers.append(path)
                break
    return headers


def _read(header: Path) -> str:
    stat = header.stat()
    return _read_version(header, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=256)
def _read_version(header: Path, _mtime_ns: int, _size: int) -> str:
    return header.read_text()
