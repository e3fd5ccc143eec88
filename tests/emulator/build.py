"""Kernels for the emulated GPU: compiled for the host, loaded like any other."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

from comfuse import library
from comfuse.build.toolkit import INCLUDE_DIR, find_cxx
from comfuse.generator.emit import KernelSource
from comfuse.library import LoadedKernel
from tests.emulator.rewrite import rewrite_headers

_STANDS_IN = Path(__file__).with_name("include")
_FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-D__CUDACC__", "-w")


@dataclass(frozen=True)
class _Built:
    name: str
    path: Path


@dataclass(frozen=True)
class EmulatedKernel:
    """A kernel whose launches run on this machine's processor, their tensors in its memory.

    Threads advance and transfers arrive in an order that the seed decides.  A launch returns a
    cudaErrorLaunchFailure where the kernel breaks a rule of the hardware, or deadlocks: ``error`` says which.
    """

    kernel: LoadedKernel

    def configure(self, seed: int) -> None:
        """For the launches to come."""
        self.kernel.handle.emulator_configure(ctypes.c_uint64(seed))

    @property
    def error(self) -> str:
        function = self.kernel.handle.emulator_error
        function.restype = ctypes.c_char_p
        return function().decode()


def headers(folder: Path) -> Path:
    """The device headers, rewritten, in a folder to include."""
    include = folder / "include"
    rewrite_headers(INCLUDE_DIR, include)
    return include


def spoilt(folder: Path, file: str, old: str, new: str) -> Path:
    """The headers, of which one, of those of sm90, reads otherwise."""
    copy = headers(folder)
    header = copy / "comfuse" / "sm90" / file
    text = header.read_text()
    assert text.count(old) == 1, f"{file} has changed"
    header.write_text(text.replace(old, new))
    return copy


def build(source: KernelSource, folder: Path, include: Path, processors: int = 2) -> EmulatedKernel:
    """For a GPU that holds a CTA on each of its processors.

    Raises:
        ToolchainError: there is no C++ compiler.
    """
    compiler, _ = find_cxx()
    text, path = folder / f"{source.name}.cpp", folder / f"{source.name}.so"
    text.write_text(source.text)
    options = [f"-I{_STANDS_IN}", f"-I{include}", f"-DEMULATOR_PROCESSORS={processors}"]
    options += ["-include", "cuda_runtime.h"]  # as nvcc does by itself
    subprocess.run([str(compiler), *_FLAGS, *options, str(text), "-o", str(path)], check=True)
    return EmulatedKernel(library.load(_Built(source.name, path)))
