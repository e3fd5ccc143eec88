"""The C++ library between torch and the kernels: shipped with the package, or built at first use."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from comfuse import settings
from comfuse.build import cache
from comfuse.build.cache import BuiltKernel
from comfuse.build.compile import compile_cxx, cxx_flags
from comfuse.build.folders import library_folders
from comfuse.build.toolkit import BINDING_DIR, INCLUDE_DIR, find_cxx
from comfuse.errors import BuildError, JitDisabledError

_LOGGER = logging.getLogger("comfuse")
NAME = "comfuse_torch"
#: Where setup.py puts the library that it builds at install.
PREBUILT_DIR = Path(__file__).resolve().parents[1] / "lib"


def source_digest() -> str:
    """Hash of all that the binding is made from.  It is part of a prebuilt library's file name, so that one
    left behind by other sources is never loaded."""
    files = [*sorted(BINDING_DIR.glob("*.h")), *sources(), INCLUDE_DIR / "comfuse" / "abi.h"]
    parts = [part for file in files for part in (file.name, file.read_text())]
    return cache.hash_text(*parts, *cxx_flags())[:16]


def sources() -> list[Path]:
    return sorted(BINDING_DIR.glob("*.cpp"))


def prebuilt_path() -> Path:
    return PREBUILT_DIR / f"{NAME}-{source_digest()}.so"


def find_binding() -> Path | None:
    """The binding's library if it is built: the one that came with the package, else that of a kernel
    library, else one in the cache."""
    prebuilt = prebuilt_path()
    for folder in (prebuilt.parent, *library_folders()):
        if (folder / prebuilt.name).is_file():
            return folder / prebuilt.name
    found = cache.find(entry())
    return found.path if found is not None else None


def build_binding(tick: Callable[[], None] | None = None) -> Path:
    """The binding's library, built now if it is not there (g++ only, about 10 s).

    ``tick`` is called several times a second meanwhile, and may raise to end the build.

    Raises:
        JitDisabledError: it is not built and ``COMFUSE_JIT=off``.
        ToolchainError: there is no C++ compiler.
        BuildError: the compiler refused.
        CacheError: the cache cannot be used.
    """
    found = find_binding()
    if found is not None:
        return found
    if settings.jit() == "off":
        raise JitDisabledError("ComFuse's torch binding")
    find_cxx()
    tick = tick or _nothing
    with cache.locked(entry(), tick):
        built = cache.find(entry())
        if built is None:
            _LOGGER.info("building the torch binding, once for this version of torch")
            with cache.private_folder(entry()) as folder, cache.told_where("the torch binding", folder):
                built = _publish(folder, compile_into(folder, tick))
    return built.path


def compile_into(folder: Path, tick: Callable[[], None]) -> Path:
    """Compiles the binding in ``folder``, which must be empty; what setup.py calls."""
    try:
        return compile_cxx(NAME, sources(), folder, tick)
    except BuildError as e:
        kept = cache.keep_failed(NAME, {"build.log": folder / "build.log"})
        raise BuildError(NAME, BINDING_DIR, kept / "build.log", e.message) from None


def _publish(folder: Path, library: Path) -> BuiltKernel:
    manifest = {"name": NAME, "library": f"{NAME}.so", "torch": _torch_version(), "built": time.time()}
    return cache.publish(entry(), {f"{NAME}.so": library, "build.log": folder / "build.log"}, manifest)


def entry() -> str:
    return f"{NAME}-{source_digest()}-{cache.hash_text(_torch_version())[:8]}"


def _torch_version() -> str:
    import torch

    return torch.__version__


def _nothing() -> None:
    pass
