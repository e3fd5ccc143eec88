"""Where kernel libraries are looked for that were built ahead of time."""

from __future__ import annotations

from pathlib import Path

from comfuse import settings

#: Where setup.py puts a library, as data of the package.
PACKAGE_LIBRARY = Path(__file__).resolve().parents[1] / "prebuilt"


_ADDED: dict[Path, None] = {}  # by this process, in the order in which it did so


def add(folder: Path) -> None:
    """Has kernel libraries looked for in ``folder`` too, in this process."""
    _ADDED[folder.absolute()] = None


def user_library() -> Path:
    return settings.data_dir() / "library"


def library_folders() -> tuple[Path, ...]:
    """In the order in which they are asked: ``COMFUSE_LIBRARY``, those added, ComFuse's own, the user's."""
    return (*settings.library(), *_ADDED, PACKAGE_LIBRARY, user_library())
