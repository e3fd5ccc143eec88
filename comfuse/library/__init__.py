"""Built libraries in, callable kernels out.  Needs no compiler and no GPU to load."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from comfuse.errors import LaunchError, LoadError
from comfuse.library import abi

__all__ = ["KernelInfo", "LoadedKernel", "load"]


class Built(Protocol):
    """What :func:`load` takes: a ``BuiltKernel``, or anything with a name and a path."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...


@dataclass(frozen=True)
class KernelInfo:
    """What a kernel occupies on the current GPU."""

    registers: int
    local_bytes: int
    shared_bytes: int
    max_active_clusters: int
    threads: int


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel library in this process.  It stays loaded for the life of the process.

    Attributes:
        launch: address of ``int cf_launch_<name>(const CfArgs*, void* workspace, void* stream)``.
        workspace: address of ``int64_t cf_workspace_<name>(int64_t m, int64_t batches)``.
        info: address of ``int cf_info_<name>(CfInfo*)``.
    """

    name: str
    path: Path
    launch: int
    workspace: int
    info: int
    handle: Any = field(repr=False, compare=False)

    def workspace_bytes(self, m: int, batches: int = 1) -> int:
        """Bytes of workspace that a launch with ``m`` rows in each of ``batches`` needs; zeroed once before
        the first."""
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(self.workspace)
        return function(m, batches)

    def query(self) -> KernelInfo:
        """What the kernel occupies on the current GPU.  Raises LaunchError without one."""
        info = abi.Info()
        code = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(abi.Info))(self.info)(ctypes.byref(info))
        if code:
            raise LaunchError(f"{self.name}: cannot be inspected: {abi.describe(code)}")
        return KernelInfo(
            info.registers, info.local_bytes, info.shared_bytes, info.max_active_clusters, info.threads
        )


_LOADED: dict[tuple[str, str], LoadedKernel] = {}


def load(built: Built) -> LoadedKernel:
    """Loads a built kernel, once a process, with its symbols kept to itself.

    Raises:
        LoadError: the file cannot be loaded, lacks an entry point, or was built for another ABI version.
    """
    key = (built.name, str(built.path))
    if key not in _LOADED:
        _LOADED[key] = _load(built)
    return _LOADED[key]


def _load(built: Built) -> LoadedKernel:
    try:
        handle = ctypes.CDLL(str(built.path), mode=ctypes.RTLD_LOCAL)
    except OSError as e:
        raise LoadError(f"{built.name}: {built.path} cannot be loaded: {e}") from e
    addresses = {}
    for kind in ("launch", "workspace", "info"):
        try:
            function = getattr(handle, f"cf_{kind}_{built.name}")
        except AttributeError:
            raise LoadError(f"{built.name}: {built.path} has no function cf_{kind}_{built.name}") from None
        addresses[kind] = ctypes.cast(function, ctypes.c_void_p).value or 0
    kernel = LoadedKernel(name=built.name, path=built.path, handle=handle, **addresses)
    _check_abi(kernel)
    return kernel


def _check_abi(kernel: LoadedKernel) -> None:
    """Launches with an impossible ABI version, which a library of this ABI refuses before anything else."""
    arguments = abi.Args(abi_version=0xFFFFFFFF)
    launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(abi.Args), ctypes.c_void_p, ctypes.c_void_p)
    if launch(kernel.launch)(ctypes.byref(arguments), None, None) != -1:
        raise LoadError(f"{kernel.name}: does not check its ABI version")
    info = abi.Info()
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(abi.Info))(kernel.info)(ctypes.byref(info))
    if info.abi_version not in (0, abi.ABI_VERSION):
        raise LoadError(
            f"{kernel.name}: built for ABI version {info.abi_version}, this ComFuse has {abi.ABI_VERSION}; "
            "delete it from the cache"
        )
