"""The C++ binding in this process: loaded once, at the first CUDA call or when asked."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from torch import Tensor

from comfuse import fallbacks, settings
from comfuse.build.binding import build_binding
from comfuse.errors import CacheError, JitDisabledError, LoadError, ToolchainError
from comfuse.library import LoadedKernel
from comfuse.ops import programs
from comfuse.ops.facts import Facts, facts

_RESOLVER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
#: Returns 0 (registered), 1 (run the reference), or an error's text.
Resolve = Callable[[str, int, int], int | str]

_LOCK = threading.Lock()
_LIBRARY: ctypes.CDLL | None = None
_CALLBACK: object = None  # kept alive: C++ calls it
_RESOLVE: Resolve | None = None


def set_resolver(resolve: Resolve) -> None:
    """Sets what is asked, with (spec, rows, device), on a call for which no kernel is registered."""
    global _RESOLVE
    _RESOLVE = resolve


def load() -> ctypes.CDLL:
    """The binding's library; built first if it did not come with the package.  It then serves all CUDA calls.

    Raises:
        JitDisabledError, ToolchainError, BuildError, CacheError: it is not there and cannot be built.
        LoadError: it cannot be loaded.
    """
    global _LIBRARY, _CALLBACK
    with _LOCK:
        if _LIBRARY is None:
            path = build_binding()
            try:
                library = ctypes.CDLL(str(path))  # registers its kernels with torch
            except OSError as e:
                raise LoadError(f"ComFuse's torch binding {path} cannot be loaded: {e}") from e
            _declare(library)
            _CALLBACK = _RESOLVER(_resolve)
            library.comfuse_set_resolver(_CALLBACK)
            fallbacks.add_source(copies, reset_copies)
            _LIBRARY = library
        return _LIBRARY


def is_loaded() -> bool:
    return _LIBRARY is not None


def reason_against(tensor: Tensor) -> str | None:
    """Why a call with this tensor cannot run in C++, or None after loading the binding for it.

    Raises what :func:`load` raises, but for a missing compiler or an unusable cache where falling back is
    allowed.
    """
    if not tensor.is_cuda:
        return f"ComFuse has no kernels for {tensor.device.type} devices"
    try:
        load()
    except (CacheError, JitDisabledError, ToolchainError) as e:
        if settings.jit() == "require":
            raise
        return str(e)
    return None


def register(spec: str, kernel: LoadedKernel, min_rows: int, max_rows: int) -> None:
    """Makes ``kernel`` serve a registered spec for launches with ``min_rows`` to ``max_rows`` rows."""
    text = spec.encode()
    if load().comfuse_register_kernel(
        text, len(text), min_rows, max_rows, kernel.name.encode(), kernel.launch, kernel.workspace
    ):
        raise LoadError(f"{kernel.name}: its spec is not registered")


def register_program(spec: str) -> None:
    """Tells the binding what a spec is.  Raises SpecError or ArgumentError if it is no spec, or too large."""
    text = spec.encode()
    load().comfuse_register_program(text, len(text), ctypes.byref(facts(programs.parse(spec))))


_COPIES = {
    "a copied": "its rows are not laid out as the spec says, with one stride and aligned to 16 bytes",
    "b copied": "its rows are not laid out as the spec says, with one stride and aligned to 16 bytes",
    "an operand copied": "its rows cannot be walked with two strides, or are not aligned to 16 bytes",
}


def copies() -> dict[tuple[str, str], int]:
    """Calls that copied a tensor first, because a kernel cannot read it in place."""
    library = load()
    return {
        ("comfuse::region", f"{what}: {why}"): count
        for slot, (what, why) in enumerate(_COPIES.items())
        if (count := library.comfuse_copies(slot))
    }


def reset_copies() -> None:
    load().comfuse_reset_copies()


def _declare(library: ctypes.CDLL) -> None:
    text = (ctypes.c_char_p, ctypes.c_int64)
    library.comfuse_register_program.argtypes = (*text, ctypes.POINTER(Facts))
    library.comfuse_register_program.restype = None
    library.comfuse_register_kernel.argtypes = (
        *text, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
    )  # fmt: skip
    library.comfuse_register_kernel.restype = ctypes.c_int
    library.comfuse_set_resolver.argtypes = (_RESOLVER,)
    library.comfuse_set_resolver.restype = None
    library.comfuse_set_error.argtypes = (ctypes.c_char_p,)
    library.comfuse_set_error.restype = None
    library.comfuse_copies.argtypes = (ctypes.c_int,)
    library.comfuse_copies.restype = ctypes.c_int64
    library.comfuse_reset_copies.restype = None


def _resolve(spec: int, length: int, rows: int, device: int) -> int:
    """What C++ calls, without the GIL, which ctypes takes.  Nothing may be raised from here."""
    try:
        assert _RESOLVE is not None
        answer = _RESOLVE(ctypes.string_at(spec, length).decode(), rows, device)
    except BaseException as e:  # even KeyboardInterrupt: it reaches the caller as a typed message
        answer = f"[LoadError] {type(e).__name__}: {e}"
    if isinstance(answer, int):
        return answer
    assert _LIBRARY is not None
    _LIBRARY.comfuse_set_error(answer.encode())
    return 2
