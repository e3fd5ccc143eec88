"""Where kernel libraries are looked for that were built ahead of time."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from comfuse import settings

#: Where setup.py puts a library, as data of the package.
PACKAGE_LIBRARY = Path(__file__).resolve().parents[1] / "prebuilt"


def user_library() -> Path:
    return Path(platformdirs.user_data_dir("comfuse")) / "library"


def library_folders() -> tuple[Path, ...]:
    """In the order in which they are asked: ``COMFUSE_LIBRARY``, the package's own, the user's."""
    return (*settings.library(), PACKAGE_LIBRARY, user_library())
