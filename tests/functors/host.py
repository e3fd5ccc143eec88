"""Compiles our headers for the host."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).parents[2] / "csrc" / "include"


def compile_for_host(folder: Path, source: str, *includes: Path) -> ctypes.CDLL:
    """``source`` as a loaded library; skips the test where there is no compiler.

    ``includes`` come before our own headers: what lies there under the same name takes their place.
    """
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler for the host")
    file, library = folder / "host.cpp", folder / "host.so"
    file.write_text(source)
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC"]
    paths = [f"-I{path}" for path in (*includes, INCLUDE)]
    subprocess.run([compiler, *flags, *paths, str(file), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
