"""Where the compilers and headers are: the only place that looks for CUDA, CUTLASS and a C++ compiler.

Each finder says where its answer came from, for ``comfuse doctor``.  None of them imports torch.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from comfuse import settings
from comfuse.build.files import write_whole
from comfuse.errors import ToolchainError

#: csrc/ of the checkout, or its copy in the installed package.
CSRC_DIR = (Path(__file__).resolve().parents[1] / "csrc").resolve()
INCLUDE_DIR = CSRC_DIR / "include"
BINDING_DIR = CSRC_DIR / "binding"
#: Where torch looks last.
DEFAULT_CUDA = Path("/usr/local/cuda")


@dataclass(frozen=True)
class CudaToolkit:
    """A CUDA toolkit: ``home`` holds ``bin/nvcc`` and ``include``."""

    home: Path
    nvcc: Path
    version: str  # of nvcc, e.g. "13.0.88"
    source: str  # how it was found

    @property
    def library_dir(self) -> Path:
        """The folder of ``libcudart_static.a``.  Raises ToolchainError if there is none."""
        candidates = [self.home / "lib64", self.home / "lib", self.home / "targets/x86_64-linux/lib"]
        for candidate in candidates:
            if (candidate / "libcudart_static.a").is_file():
                return candidate
        raise ToolchainError(
            "libcudart_static.a",
            tuple(str(c) for c in candidates),
            "install the CUDA runtime's development files (pip: nvidia-cuda-runtime)",
        )


@dataclass(frozen=True)
class Cutlass:
    """CUTLASS's headers."""

    include: Path
    version: str
    source: str


def find_cuda() -> CudaToolkit:
    """The CUDA toolkit to compile with.

    Looked for in this order: ``CUDA_HOME`` and ``CUDA_PATH``, ``nvcc`` on ``PATH`` (which may be a wrapper
    script), torch's default ``/usr/local/cuda``, the ``nvidia-cuda-nvcc`` packages of this Python.

    Raises:
        ToolchainError: none of them holds an nvcc that runs.
    """
    environment = tuple(os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "PATH"))
    return _find_cuda(environment)


@functools.cache
def _find_cuda(_environment: tuple[str, ...]) -> CudaToolkit:
    tried = []
    for source, home in _cuda_candidates():
        if home is None:
            tried.append(f"{source}: none")
            continue
        nvcc = home / "bin" / "nvcc"
        if not os.access(nvcc, os.X_OK):
            tried.append(f"{source}: {home} has no bin/nvcc")
            continue
        if not _has_runtime_headers(home):
            tried.append(f"{source}: {home} has no cuda_runtime.h")
            continue
        version = _nvcc_version(nvcc)
        if version is None:
            tried.append(f"{source}: {nvcc} does not run")
            continue
        return CudaToolkit(home, nvcc, version, source)
    raise ToolchainError(
        "nvcc",
        tuple(tried),
        "install a CUDA toolkit and set CUDA_HOME, or `pip install comfuse[toolchain]`",
    )


def _cuda_candidates() -> Iterator[tuple[str, Path | None]]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        value = os.environ.get(name)
        yield f"environment variable {name}", Path(value) if value else None
    on_path = shutil.which("nvcc")
    yield "nvcc on PATH", _home_of_nvcc(Path(on_path)) if on_path else None
    yield f"torch's default {DEFAULT_CUDA}", DEFAULT_CUDA if DEFAULT_CUDA.exists() else None
    yield from (("pip packages", home) for home in _pip_homes())


def _has_runtime_headers(home: Path) -> bool:
    return (home / "include" / "cuda_runtime.h").is_file() or (
        home / "targets/x86_64-linux/include/cuda_runtime.h"
    ).is_file()


def _home_of_nvcc(nvcc: Path) -> Path | None:
    """The toolkit behind an ``nvcc``, which may be a link to the real one or a script that runs it."""
    real = nvcc.resolve()
    home = real.parent.parent
    if _has_runtime_headers(home) and not _is_script(real):
        return home
    # A wrapper tells where the real nvcc lives when it prints the steps that it would run.
    output = _identity(real, "dryrun", lambda: _run([str(real), "--dryrun", "-x", "cu", "-c", os.devnull]))
    match = re.search(r"^#\$ _HERE_=(.+)$", output, re.MULTILINE)
    return Path(match.group(1)).resolve().parent if match else None


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _pip_homes() -> list[Path]:
    site = {Path(sysconfig.get_paths()[key]) for key in ("purelib", "platlib")}
    spec = importlib.util.find_spec("nvidia")
    if spec is not None and spec.submodule_search_locations:
        site |= {Path(location).parent for location in spec.submodule_search_locations}
    return sorted(nvcc.parent.parent for folder in site for nvcc in folder.glob("nvidia/*/bin/nvcc"))


def _nvcc_version(nvcc: Path) -> str | None:
    output = _identity(nvcc, "version", lambda: _run([str(nvcc), "--version"]))
    match = re.search(r"release [\d.]+, V([\d.]+)", output)
    return match.group(1) if match else None


def find_cutlass() -> Cutlass:
    """CUTLASS's headers: ``COMFUSE_CUTLASS_DIR``, else the nvidia-cutlass package.

    Raises:
        ToolchainError: neither holds ``include/cutlass/version.h``.
    """
    return _find_cutlass(settings.cutlass_dir())


@functools.cache
def _find_cutlass(override: Path | None) -> Cutlass:
    tried = []
    for source, root in (("COMFUSE_CUTLASS_DIR", override), ("package nvidia-cutlass", _cutlass_package())):
        if root is None:
            tried.append(f"{source}: not set" if root is override else f"{source}: not installed")
            continue
        header = root / "include" / "cutlass" / "version.h"
        if not header.is_file():
            tried.append(f"{source}: {root} has no include/cutlass/version.h")
            continue
        version = _cutlass_version(header)
        if version is None:
            tried.append(f"{source}: {header} does not say its version")
            continue
        return Cutlass(root / "include", version, source)
    raise ToolchainError("CUTLASS", tuple(tried), "`pip install nvidia-cutlass` or set COMFUSE_CUTLASS_DIR")


def _cutlass_package() -> Path | None:
    spec = importlib.util.find_spec("cutlass_library")  # finds it without running it
    return Path(spec.origin).parent / "source" if spec is not None and spec.origin else None


def _cutlass_version(header: Path) -> str | None:
    text = header.read_text(errors="replace")
    found = [re.search(rf"#define CUTLASS_{name} (\d+)", text) for name in ("MAJOR", "MINOR", "PATCH")]
    numbers = [match.group(1) for match in found if match is not None]
    return ".".join(numbers) if len(numbers) == len(found) else None


def find_cxx() -> tuple[Path, str]:
    """The C++ compiler that torch's build tool will call, and its version line.

    Raises:
        ToolchainError: there is none.
    """
    name = os.environ.get("CXX", "c++")
    found = shutil.which(name)
    if found is None:
        raise ToolchainError("a C++ compiler", (f"{name} on PATH",), "install g++ or set CXX")
    path = Path(found).resolve()
    output = _identity(path, "version", lambda: _run([str(path), "--version"]))
    return path, output.splitlines()[0] if output else "unknown"


def _run(command: list[str]) -> str:
    """Standard output and error of a command, or nothing if it cannot run or fails."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _identity(program: Path, question: str, ask: Callable[[], str]) -> str:
    """What ``program`` answered to ``question``, remembered on disk until the program's file changes.

    So a process that finds its kernel built already starts no compiler, however slow its wrapper is.
    """
    stat = program.stat()
    key = f"{question} {program} {stat.st_mtime_ns} {stat.st_size}"
    path = settings.cache_dir() / "toolchain.json"
    try:
        answers = json.loads(path.read_text())
        if isinstance(answers, dict) and isinstance(answers.get(key), str):
            return answers[key]
    except (OSError, ValueError):
        answers = {}
    answer = ask()
    if answer:  # a failure may be cured without the file changing
        _remember(path, (answers if isinstance(answers, dict) else {}) | {key: answer})
    return answer


def _remember(path: Path, answers: dict[str, str]) -> None:
    with suppress(OSError):  # an unwritable cache costs time here; the build itself reports it
        write_whole(path, json.dumps(answers, indent=1))
