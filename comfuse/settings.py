"""Every ``COMFUSE_*`` environment variable that is read at run time, typed, in one table.

``COMFUSE_BINDING`` and ``COMFUSE_PREBUILD`` are the install's: setup.py reads them.

A variable is read when it is asked for, so that a program or a test may set it at any time.  A value that
cannot be read raises :class:`comfuse.errors.SettingError`, which lists what is allowed.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import platformdirs

from comfuse.errors import SettingError

T = TypeVar("T")
Jit = Literal["auto", "off", "require", "background"]
Recompute = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable: its name, how its text is read, and what holds when it is not set."""

    name: str
    read: Callable[[str], T]
    default: Callable[[], T]
    allowed: str
    help: str

    def get(self) -> T:
        """The value now.  Raises SettingError when the text in the environment cannot be read."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default()
        try:
            return self.read(text)
        except (ValueError, RuntimeError):  # the latter where a path's ~ is nobody's
            raise SettingError(self.name, text, self.allowed) from None


def _choice(*names: str) -> Callable[[str], Any]:
    def read(text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in names:
            raise ValueError
        return lowered

    return read


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part)


def data_dir() -> Path:
    """The user's own: kernel libraries, tables of measured choices, calibrations."""
    return Path(platformdirs.user_data_dir("comfuse"))


CACHE_DIR: Variable[Path] = Variable(
    "COMFUSE_CACHE_DIR", _path, lambda: Path(platformdirs.user_cache_dir("comfuse")), "a path",
    "where built kernels are kept; the user's cache directory if not set",
)  # fmt: skip
JIT: Variable[Jit] = Variable(
    "COMFUSE_JIT", _choice("auto", "off", "require", "background"), lambda: "auto",
    "auto, off, require, background",
    "auto: compile what is not built yet, fall back where that cannot be done; "
    "off: never compile, use what is built; require: raise instead of falling back for want of a compiler or "
    "a cache that can be used; "
    "background: as auto, but torch.compile runs without what is not built yet until it is",
)  # fmt: skip
STRICT: Variable[bool] = Variable(
    "COMFUSE_STRICT", _boolean, lambda: False, "0 or 1",
    "1: raise FallbackError where ComFuse would otherwise fall back to PyTorch",
)  # fmt: skip
CHAINS: Variable[bool] = Variable(
    "COMFUSE_CHAINS", _boolean, lambda: True, "0 or 1",
    "0: never run GEMMs back to back as one kernel; each gets a kernel of its own.  To be set before "
    "such a program is first called",
)  # fmt: skip
RECOMPUTE: Variable[Recompute] = Variable(
    "COMFUSE_RECOMPUTE", _choice("auto", "always", "never"), lambda: "auto",
    "auto, always, never",
    "whether the backward of fused_mlp and fused_b2b_gemm computes what lies between the layers anew, in one "
    "kernel, or the forward keeps it; auto: what the cost model predicts to be the faster",
)  # fmt: skip
LOG: Variable[str] = Variable(
    "COMFUSE_LOG", _choice("debug", "info", "warning", "error"), lambda: "warning",
    "debug, info, warning, error", "if set, messages of at least this level are printed",
)  # fmt: skip
DUMP_DIR: Variable[Path | None] = Variable(
    "COMFUSE_DUMP_DIR",
    _path,
    lambda: None,
    "a path",
    "the text of every kernel asked for is also written here",
)
CUTLASS_DIR: Variable[Path | None] = Variable(
    "COMFUSE_CUTLASS_DIR", _path, lambda: None, "a path",
    "CUTLASS's folder, the one that holds include/cutlass; the nvidia-cutlass package if not set",
)  # fmt: skip
NVCC_FLAGS: Variable[tuple[str, ...]] = Variable(
    "COMFUSE_NVCC_FLAGS", lambda text: tuple(shlex.split(text)), lambda: (), "flags, as in a shell",
    "flags added to every nvcc call, for example -lineinfo; part of the cache key",
)  # fmt: skip
COMPILER_LAUNCHER: Variable[tuple[str, ...]] = Variable(
    "COMFUSE_COMPILER_LAUNCHER", lambda text: tuple(shlex.split(text)), lambda: (),
    "a command, as in a shell",
    "put before every nvcc call, for example ccache or sccache, or what sends it to another machine",
)  # fmt: skip
LIBRARY: Variable[tuple[Path, ...]] = Variable(
    "COMFUSE_LIBRARY", _paths, lambda: (), "paths, separated as in PATH",
    "folders of kernel libraries, asked before the package's own and the user's",
)  # fmt: skip
TUNED: Variable[tuple[Path, ...] | None] = Variable(
    "COMFUSE_TUNED", lambda text: None if text.strip().lower() == "off" else _paths(text), lambda: (),
    "off, or paths, separated as in PATH",
    "tables of `comfuse tune`, asked before the user's own and those that are shipped; "
    "off: the cost model alone chooses kernels",
)  # fmt: skip
CALIBRATION: Variable[Path] = Variable(
    "COMFUSE_CALIBRATION", _path, lambda: data_dir() / "calibration",
    "a path",
    "folder of what `comfuse calibrate` measured; in the user's data directory if not set",
)  # fmt: skip
MAX_JOBS: Variable[int | None] = Variable(
    "COMFUSE_MAX_JOBS", _positive, lambda: None, "a whole number, at least 1",
    "kernels compiled at once; bounded by processors and memory if not set",
)  # fmt: skip
BUILD_TIMEOUT: Variable[float] = Variable(
    "COMFUSE_BUILD_TIMEOUT", _seconds, lambda: 600.0, "seconds, at least 0",
    "how long a build may take, of this process or of another that builds the same kernel",
)  # fmt: skip

TABLE: tuple[Variable[Any], ...] = (
    CACHE_DIR, JIT, STRICT, CHAINS, RECOMPUTE, LOG, DUMP_DIR, CUTLASS_DIR, NVCC_FLAGS, COMPILER_LAUNCHER,
    LIBRARY, TUNED, CALIBRATION, MAX_JOBS, BUILD_TIMEOUT,
)  # fmt: skip


def configure_logging() -> None:
    """Applies ``COMFUSE_LOG``, if it is set; otherwise logging is the program's own business.

    A level that cannot be read is the default's, with a warning: this runs where comfuse is imported, which
    has to work all the same.
    """
    if not os.environ.get(LOG.name):
        return
    logger = logging.getLogger("comfuse")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("comfuse: %(levelname)s: %(message)s"))
        logger.addHandler(handler)
    try:
        logger.setLevel(log().upper())
    except SettingError as e:
        logger.setLevel(LOG.default().upper())
        logger.warning("%s; it is taken for %s", e, LOG.default())


def cache_dir() -> Path:
    return CACHE_DIR.get()


def jit() -> Jit:
    return JIT.get()


def strict() -> bool:
    return STRICT.get()


def chains() -> bool:
    return CHAINS.get()


def recompute() -> Recompute:
    return RECOMPUTE.get()


def log() -> str:
    return LOG.get()


def dump_dir() -> Path | None:
    return DUMP_DIR.get()


def cutlass_dir() -> Path | None:
    return CUTLASS_DIR.get()


def nvcc_flags() -> tuple[str, ...]:
    return NVCC_FLAGS.get()


def compiler_launcher() -> tuple[str, ...]:
    return COMPILER_LAUNCHER.get()


def library() -> tuple[Path, ...]:
    return LIBRARY.get()


def tuned() -> tuple[Path, ...] | None:
    return TUNED.get()


def calibration() -> Path:
    return CALIBRATION.get()


def max_jobs() -> int | None:
    return MAX_JOBS.get()


def build_timeout() -> float:
    return BUILD_TIMEOUT.get()
