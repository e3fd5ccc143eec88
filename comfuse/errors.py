"""Every error that ComFuse raises on purpose.

The root is defined in the pure half, which stands below this module; ``ComFuseError`` is its public name.
Each error names what it is about, what was got, what is allowed, and what to do.
"""

from __future__ import annotations

from pathlib import Path

from comfuse.generator.errors import ArgumentError, GeneratorError, PlanError, SpecError

ComFuseError = GeneratorError

__all__ = [
    "ArgumentError",
    "BuildError",
    "CacheError",
    "CalibrationError",
    "CatalogueError",
    "ComFuseError",
    "DTypeError",
    "DeviceError",
    "FallbackError",
    "GeneratorError",
    "GradientError",
    "JitDisabledError",
    "LaunchError",
    "LoadError",
    "PlanError",
    "SettingError",
    "ShapeError",
    "SpecError",
    "TableError",
    "ToolchainError",
    "TuneError",
    "WrongResultError",
]


class ShapeError(ArgumentError):
    """A tensor of the wrong rank or size."""


class DTypeError(ArgumentError, TypeError):
    """A tensor of an element type that the op does not take."""


class DeviceError(ArgumentError):
    """A tensor on a device that the op does not run on, or not on the device of the others."""


class SettingError(ComFuseError):
    """An environment variable whose text cannot be read."""

    def __init__(self, name: str, got: str, allowed: str) -> None:
        super().__init__(f"environment variable {name} is {got!r}; allowed: {allowed}")
        self.name = name
        self.got = got
        self.allowed = allowed


class FallbackError(ComFuseError, RuntimeError):
    """A fallback under ``COMFUSE_STRICT=1``."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: not fused: {reason} (COMFUSE_STRICT=1 forbids the fallback)")
        self.where = where
        self.reason = reason


class GradientError(ComFuseError, RuntimeError):
    """A gradient that ComFuse does not compute."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op}: {reason}")
        self.op = op
        self.reason = reason


class ToolchainError(ComFuseError, RuntimeError):
    """A compiler, a header or a CUDA build of torch that a build needs is not there.

    Attributes:
        missing: what is missing, e.g. ``"nvcc"``.
        tried: the places looked at, with what was found there.
    """

    def __init__(self, missing: str, tried: tuple[str, ...], hint: str) -> None:
        looked = "; ".join(tried)
        super().__init__(
            f"{missing} not found ({looked}); {hint}" if looked else f"{missing} not found; {hint}"
        )
        self.missing = missing
        self.tried = tried
        self.hint = hint


class JitDisabledError(ComFuseError, RuntimeError):
    """A kernel that is not built yet while ``COMFUSE_JIT=off``."""

    def __init__(self, kernel: str) -> None:
        super().__init__(
            f"{kernel} is not in the cache and COMFUSE_JIT=off forbids compiling it; set it to auto"
        )
        self.kernel = kernel


class BuildError(ComFuseError, RuntimeError):
    """The compiler or the linker refused a kernel.

    Attributes:
        kernel: the kernel's name.
        source: where its source is kept.
        log: where the compiler's whole output is kept.
        message: the lines of it that say why.
    """

    def __init__(self, kernel: str, source: Path, log: Path, message: str) -> None:
        super().__init__(f"{kernel} does not compile\n  source: {source}\n  log:    {log}\n{message}")
        self.kernel = kernel
        self.source = source
        self.log = log
        self.message = message


class CacheError(ComFuseError, RuntimeError):
    """The kernel cache cannot be used: not writable, or its lock was not released in time."""


class CalibrationError(ComFuseError, ValueError):
    """What was measured of a GPU cannot be read or kept, or is too little."""


class CatalogueError(ComFuseError, ValueError):
    """A catalogue of kernels to build that cannot be read, or asks for what does not exist."""

    def __init__(self, catalogue: str, problem: str) -> None:
        super().__init__(f"catalogue {catalogue}: {problem}")
        self.catalogue = catalogue
        self.problem = problem


class TableError(ComFuseError, ValueError):
    """A table of measured choices that cannot be read or written."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"tuning table {path} {problem}")
        self.path = path
        self.problem = problem


class TuneError(ComFuseError, RuntimeError):
    """A program of which no plan could be built, run and found right."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"{program}: nothing can be chosen: {reason}")
        self.program = program
        self.reason = reason


class WrongResultError(ComFuseError, ArithmeticError):
    """A kernel whose results are not what its program says.

    Attributes:
        output: the name of the output.
        problem: what is wrong with it.
    """

    def __init__(self, output: str, problem: str) -> None:
        super().__init__(f"output {output}: {problem}")
        self.output = output
        self.problem = problem


class LoadError(ComFuseError, RuntimeError):
    """A built library that cannot be loaded, or that was built for another ABI."""


class LaunchError(ComFuseError, RuntimeError):
    """A kernel that could not be launched, or the CUDA runtime refusing what a launch needs."""
