"""Layouts and index arithmetic of the device headers, checked on the host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from comfuse.build.compile import toolchain
from comfuse.build.toolkit import INCLUDE_DIR, find_cxx
from comfuse.errors import ToolchainError

HOST = Path(__file__).with_name("host")


def check(command: list[str], program: Path) -> None:
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("compilers")
def test_shared_memory_and_descriptors_agree_with_cute(tmp_path: Path) -> None:
    """K-major and MN-major blocks of 64 to 256 rows: every byte, and the descriptor of every k step."""
    cuda, cutlass = toolchain()
    include = [f"-I{INCLUDE_DIR}", f"-I{cutlass.include}"]
    source, program = HOST / "descriptors.cpp", tmp_path / "descriptors"
    check([str(cuda.nvcc), "-x", "c++", "-std=c++17", *include, str(source), "-o", str(program)], program)


@pytest.mark.parametrize("name", ["transpose", "slot", "divisor", "arrivals"])
def test_arithmetic_of_the_device(name: str, tmp_path: Path) -> None:
    """Quads trade accumulators for runs of eight columns, packed pairs for runs of four; what ldmatrix reads
    of a swizzled slot lies in different banks; divisions by multiplication are exact; column partials that
    arrive in any order are merged once, in index order, and leave the counters at zero."""
    try:
        compiler, _ = find_cxx()
    except ToolchainError as e:
        pytest.skip(str(e))
    program = tmp_path / name
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE_DIR}"]
    check([str(compiler), *flags, str(HOST / f"{name}.cpp"), "-o", str(program)], program)
