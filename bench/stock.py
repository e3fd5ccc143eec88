"""The stock CUTLASS kernel layer, compiled by the same nvcc with the same flags as our own kernels."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comfuse import settings
from comfuse.build.compile import cuda_flags
from comfuse.build.toolkit import INCLUDE_DIR, find_cuda, find_cutlass

SOURCE = Path(__file__).resolve().parent / "kernels" / "stock_gemm.cu"


@dataclass(frozen=True)
class Variant:
    """A tile of 128 rows and ``tile_n`` columns; ``cluster`` is (along M, along N)."""

    schedule: str  # "pingpong" or "cooperative"
    tile_n: int
    cluster: tuple[int, int]

    @property
    def name(self) -> str:
        return f"stock-{self.schedule}-128x{self.tile_n}-{self.cluster[0]}x{self.cluster[1]}"

    @property
    def defines(self) -> tuple[str, ...]:
        return (
            f"-DSTOCK_TILE_N={self.tile_n}",
            f"-DSTOCK_COOPERATIVE={int(self.schedule == 'cooperative')}",
            f"-DSTOCK_CLUSTER_M={self.cluster[0]}",
            f"-DSTOCK_CLUSTER_N={self.cluster[1]}",
        )


VARIANTS = (
    Variant("pingpong", 128, (1, 2)),
    Variant("pingpong", 128, (2, 1)),
    Variant("cooperative", 256, (1, 2)),
    Variant("cooperative", 256, (2, 1)),
)


def compile_seconds(source: Path, output: Path, defines: Sequence[str] = ()) -> float:
    """Compile one .cu into a shared library, by nvcc alone; the wall seconds it took.

    Raises:
        RuntimeError: nvcc refused; the message ends with what it said.
    """
    toolkit, cutlass = find_cuda(), find_cutlass()
    command = [str(toolkit.nvcc), *cuda_flags(), *defines, "-shared", "-Xcompiler=-fPIC"]
    command += [f"-I{INCLUDE_DIR}", f"-I{cutlass.include}", str(source), "-o", str(output)]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    output.with_suffix(".log").write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        raise RuntimeError(f"{source.name} does not compile:\n{(done.stdout + done.stderr)[-2000:]}")
    return seconds


def library(variant: Variant) -> Path:
    """Where a variant's library is, or will be once it is built; the name changes with what goes into it."""
    text = SOURCE.read_text() + " ".join((*cuda_flags(), *variant.defines, find_cutlass().version))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return settings.cache_dir() / "bench" / f"{variant.name}-{digest}.so"


def build(variant: Variant) -> float:
    """Build a variant anew; the seconds it took.  Raises as :func:`compile_seconds` does."""
    path = library(variant)
    path.parent.mkdir(parents=True, exist_ok=True)
    private = path.with_name(f"{os.getpid()}-{path.name}")
    seconds = compile_seconds(SOURCE, private, variant.defines)
    private.replace(path)
    return seconds


@functools.cache
def load(variant: Variant) -> ctypes.CDLL:
    """The library of a variant, built first if need be."""
    path = library(variant)
    if not path.exists():
        build(variant)
    handle = ctypes.CDLL(str(path))
    handle.stock_gemm_launch.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 3 + [ctypes.c_void_p]
    return handle
