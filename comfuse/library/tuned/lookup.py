"""The tables of measured choices that there are, and what they say of a program."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from comfuse import settings
from comfuse.build.cache import hash_file
from comfuse.errors import TableError
from comfuse.generator.spec import FusedSpec
from comfuse.library.rows import classes_on, m_class
from comfuse.library.signature import signature
from comfuse.library.tuned.table import Entry, Table, read

_LOGGER = logging.getLogger("comfuse")
_LOCK = threading.Lock()
_TABLES: dict[Path, tuple[tuple[int, int, int], Table]] = {}
_STALE: Counter[tuple[str, str]] = Counter()

#: Tables that come with ComFuse, one a GPU.
SHIPPED = Path(__file__).resolve().parents[2] / "tables"


def user_table() -> Path:
    """Where ``comfuse tune`` writes if it is not told where."""
    return settings.data_dir() / "tuned.json"


def paths() -> tuple[Path, ...]:
    """In the order in which they are asked: ``COMFUSE_TUNED``, the user's, those that are shipped."""
    named = settings.tuned()
    if named is None:
        return ()
    users = (user_table(),) if user_table().exists() else ()
    return (*named, *users, *sorted(SHIPPED.glob("*.json")))


def tables() -> list[tuple[Path, Table]]:
    """All tables, in the order in which they are asked.  Read again when they change.

    Raises:
        TableError: one is damaged, or ``COMFUSE_TUNED`` names what is not there.
    """
    return [(path, table(path)) for path in paths()]


def entries(spec: FusedSpec, gpu: str, m: int | None) -> Iterator[tuple[Path, Entry]]:
    """What the tables have for a program, a GPU and the class of a number of rows (None: many).

    Raises:
        SpecError: the spec is malformed.
        TableError: as :func:`tables`.
    """
    for path, one in tables():
        if one.unfit:
            stale(path, one.unfit)
        known = one.by_program.get((signature(spec), gpu)) if one.entries else None
        if known:
            rows = None if m is None else m_class(m, classes_on(spec, gpu))
            yield from ((path, entry) for entry in known if entry.rows == rows)


def stale(path: Path, reason: str) -> None:
    """Counts what a table has and this ComFuse does not use; logs it once."""
    with _LOCK:
        _STALE[str(path), reason] += 1
        first = _STALE[str(path), reason] == 1
    if first:
        _LOGGER.warning("tuning table %s not used: %s", path, reason)


def refusals() -> dict[tuple[str, str], int]:
    """How often each (table, reason) kept a measured choice from being used, in this process."""
    with _LOCK:
        return dict(_STALE)


def identity() -> list[str]:
    """Hashes of all tables: what is chosen changes when these do.  Raises TableError as :func:`tables`."""
    return ["off"] if settings.tuned() is None else [hash_file(path) for path, _ in tables()]


def table(path: Path) -> Table:
    """The table in a file.  Read again when it changes.  Raises TableError as :func:`tables`."""
    try:
        stat = path.stat()
    except OSError as e:
        raise TableError(path, f"cannot be read: {e}; COMFUSE_TUNED has to name tables") from None
    version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    with _LOCK:
        if path not in _TABLES or _TABLES[path][0] != version:
            _TABLES[path] = version, read(path)
        return _TABLES[path][1]
