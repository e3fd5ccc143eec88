from __future__ import annotations

from tests.library.stubs import compilers, folder

__all__ = ["compilers", "folder"]
