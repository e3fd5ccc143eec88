"""Runs the compilers: the only caller of torch.utils.cpp_extension (through worker.py)."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comfuse import settings
from comfuse.build.toolkit import INCLUDE_DIR, CudaToolkit, Cutlass, find_cuda, find_cutlass, find_cxx
from comfuse.errors import BuildError, ToolchainError

#: Compiles for exactly one architecture: wgmma and TMA exist on sm_90a alone.
_CUDA_FLAGS = (
    "-O3",
    "-std=c++17",
    "-DNDEBUG",  # asserts serialise wgmma (ptxas C7510)
    "--expt-relaxed-constexpr",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-Xptxas=-v",
    "-Xcompiler=-fvisibility=hidden",
    # torch forbids the operators of half and bfloat16 in its own kernels; ours use them.
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
_CXX_FLAGS = (
    "-O3",
    "-std=c++17",
    "-DNDEBUG",
    "-fvisibility=hidden",
    "-Wall",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",  # the stable ABI of torch 2.11, the oldest supported
)
#: What nvcc and the linker take from the environment on their own.
ENVIRONMENT_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CC", "CXX", "CPATH")

_FULL = os.strerror(errno.ENOSPC)


def cuda_flags() -> tuple[str, ...]:
    """All flags of an nvcc call, those from the environment included."""
    return _CUDA_FLAGS + settings.nvcc_flags()


def environment_flags() -> str:
    """The text of :data:`ENVIRONMENT_FLAGS`; part of the cache key."""
    return "\n".join(f"{name}={os.environ[name]}" for name in ENVIRONMENT_FLAGS if os.environ.get(name))


def cxx_flags() -> tuple[str, ...]:
    return _CXX_FLAGS


def compile_cuda(
    name: str, source: Path, folder: Path, toolkit: CudaToolkit, cutlass: Cutlass, tick: Callable[[], None]
) -> Path:
    """Compiles one ``.cu`` into ``folder/<name>.so``, a plain C library that needs neither torch nor
    libcudart.

    ``tick`` is called several times a second.  The compilers' whole output is left in ``folder/build.log``.

    Raises:
        ToolchainError: torch is not a CUDA build, or a part of the toolkit is missing.
        BuildError: the compiler or the linker refused.
        OSError: no space is left for what they write.
    """
    require_cuda_torch()
    # Torch appends its own libraries and -lcudart; --as-needed drops what the kernel does not use, which is
    # all.
    link = [
        "-Wl,--as-needed",
        "-Wl,--exclude-libs,ALL",
        f"-L{_link_folder(toolkit, folder)}",
        f"-L{toolkit.library_dir}",
        "-lcudart_static",
        "-ldl",
        "-lrt",
        "-lpthread",
    ]
    return _load(
        name,
        folder,
        tick,
        jobs=1,
        environment={
            "CUDA_HOME": str(toolkit.home),
            "CUDA_PATH": str(toolkit.home),
            **_launched(toolkit, folder),
        },
        sources=[str(source)],
        extra_cuda_cflags=[shlex.quote(flag) for flag in cuda_flags()],
        extra_ldflags=[shlex.quote(flag) for flag in link],
        extra_include_paths=[str(INCLUDE_DIR), str(cutlass.include)],
        with_cuda=True,
    )


def compile_cxx(
    name: str,
    sources: list[Path],
    folder: Path,
    tick: Callable[[], None],
    *,
    flags: tuple[str, ...] = (),
    include: tuple[Path, ...] = (),
) -> Path:
    """Compiles C++ sources against torch's stable ABI into ``folder/<name>.so``; needs no CUDA.

    ``flags`` and ``include`` come after our own.

    Raises:
        ToolchainError: no C++ compiler.
        BuildError: the compiler or the linker refused.
        OSError: no space is left for what they write.
    """
    find_cxx()
    return _load(
        name,
        folder,
        tick,
        jobs=settings.max_jobs() or min(os.cpu_count() or 1, len(sources)),
        environment={},
        sources=[str(source) for source in sources],
        extra_cflags=[*cxx_flags(), *flags],
        extra_ldflags=["-Wl,--as-needed", "-ldl", "-lpthread"],
        extra_include_paths=[str(path) for path in (INCLUDE_DIR, *include)],
        with_cuda=False,
    )


def require_cuda_torch() -> None:
    """Raises ToolchainError if torch was built without CUDA: its build tool cannot compile a ``.cu`` then."""
    import torch

    if torch.version.cuda is None:
        raise ToolchainError(
            "a CUDA build of torch",
            (f"torch {torch.__version__}",),
            "install torch's CUDA wheel to compile kernels (no GPU needed); CPU tensors run without kernels",
        )


def toolchain() -> tuple[CudaToolkit, Cutlass]:
    """All that a kernel's build needs.  Raises ToolchainError naming what is missing."""
    return find_cuda(), find_cutlass()


def _load(
    name: str,
    folder: Path,
    tick: Callable[[], None],
    *,
    jobs: int,
    environment: dict[str, str],
    **arguments: Any,
) -> Path:
    log = folder / "build.log"
    job = folder / "job.json"
    job.write_text(
        json.dumps({"name": name, "build_directory": str(folder), "parent": os.getpid(), **arguments})
    )
    command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py")), str(job)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(environment, jobs),
            start_new_session=True,  # so that ninja and the compilers can be ended with it
        )
    limit = settings.build_timeout()
    deadline = time.monotonic() + limit
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                message = f"the compilers did not end within {limit:g} s (COMFUSE_BUILD_TIMEOUT)"
                raise BuildError(name, Path(arguments["sources"][0]), log, message)
            tick()
            time.sleep(0.05)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    library = folder / f"{name}.so"
    if process.returncode != 0 or not library.is_file():
        text = log.read_text(errors="replace")
        full = next((line for line in text.splitlines() if _FULL in line), None)
        if full is not None:  # no fault of what is compiled
            raise OSError(errno.ENOSPC, full.strip())
        raise BuildError(name, Path(arguments["sources"][0]), log, message_of(text))
    return library


def _environment(extra: dict[str, str], jobs: int) -> dict[str, str]:
    environment = {**os.environ, "MAX_JOBS": str(jobs), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTORCH_NVCC", None)  # would replace the nvcc that the cache key names
    environment |= extra
    if shutil.which("ninja") is None:
        environment["PATH"] = f"{_ninja_folder()}{os.pathsep}{environment.get('PATH', '')}"
    return environment


def _launched(toolkit: CudaToolkit, folder: Path) -> dict[str, str]:
    """The environment in which torch's build tool calls nvcc by ``COMFUSE_COMPILER_LAUNCHER``."""
    launcher = settings.compiler_launcher()
    if not launcher:
        return {}
    if shutil.which(launcher[0]) is None:
        raise ToolchainError(
            launcher[0], ("PATH",), "install it, or unset COMFUSE_COMPILER_LAUNCHER, which names it"
        )
    return {
        "PYTORCH_NVCC": shlex.join([*launcher, str(toolkit.nvcc)]),
        "TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES": "1",  # sccache refuses the flags for them
        # ccache knows a compile again in another private folder only by relative paths.
        "CCACHE_BASEDIR": os.environ.get("CCACHE_BASEDIR", str(folder)),
    }


def _ninja_folder() -> str:
    """The folder of the ninja package's program, for a Python whose own bin folder is not on PATH."""
    beside_python = Path(sys.executable).parent
    if (beside_python / "ninja").is_file():
        return str(beside_python)
    if importlib.util.find_spec("ninja") is not None:
        import ninja

        return str(ninja.BIN_DIR)
    raise ToolchainError("ninja", ("PATH", "package ninja"), "`pip install ninja`")


def _link_folder(toolkit: CudaToolkit, folder: Path) -> Path:
    """A folder in which the linker finds ``libcudart.so``, which CUDA's pip packages name only by version."""
    if (toolkit.library_dir / "libcudart.so").exists():
        return toolkit.library_dir
    links = folder / "lib"
    links.mkdir()
    for versioned in toolkit.library_dir.glob("libcudart.so.*"):
        (links / "libcudart.so").symlink_to(versioned)
        break
    return links


_ERROR = re.compile(
    r"\berror\b|\bfatal\b|undefined reference|undefined symbol|cannot find|Error: ",
    re.IGNORECASE,
)


def message_of(log: str, limit: int = 40) -> str:
    """The lines of a build log that say why it failed, each with the two that follow it."""
    lines = [line for line in log.splitlines() if not line.startswith(("[", "FAILED:"))]
    traceback = next((i for i, line in enumerate(lines) if line.startswith("Traceback ")), len(lines))
    compiler = lines[:traceback]
    wanted = sorted({i + k for i, line in enumerate(compiler) if _ERROR.search(line) for k in range(3)})
    picked = [compiler[i] for i in wanted if i < len(compiler)]
    return "\n".join((picked or lines)[:limit] if picked else lines[-limit:])
