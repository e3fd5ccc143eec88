"""What setup.py builds, and what becomes of an install where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT


def install(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``pip install .``'s first half, with a C++ compiler that refuses everything."""
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-c*) echo error: no; exit 1;; esac\necho g++ 13.2.0\n')
    compiler.chmod(0o755)
    commands = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path / "lib")]
    return subprocess.run(
        [sys.executable, "setup.py", "-q", *commands],
        cwd=ROOT,
        env={**os.environ, "CXX": str(compiler), "COMFUSE_CACHE_DIR": str(tmp_path / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_a_binding_that_does_not_compile_is_left_for_later(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the torch binding will be built at first use: BuildError" in done.stderr
    assert (tmp_path / "lib/comfuse/csrc/include/comfuse/abi.h").is_file()
    assert not list((tmp_path / "lib").rglob("*.so"))


@pytest.mark.slow
def test_a_binding_that_is_required_has_to_compile(tmp_path: Path) -> None:
    done = install(tmp_path, COMFUSE_BINDING="require")
    assert done.returncode != 0
    assert "comfuse_torch does not compile" in done.stderr
