"""The command line on a GPU, each command in a process of its own, as users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


def comfuse(*arguments: str) -> str:
    command = [sys.executable, "-m", "comfuse", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_demo() -> None:
    """Its exit status says that the result was right and that nothing fell back."""
    said = comfuse("demo")
    assert "did not run" not in said
    _, _, table = said.partition("x GEMM")
    rows = [line.strip().split("  ")[0] for line in table.splitlines()[1:5]]
    assert rows == ["cuBLAS, GEMM alone", "PyTorch eager", "TorchInductor", "ComFuse"]
    assert "as fast as the best other whole program" in said


def test_doctor() -> None:
    said = comfuse("doctor")
    assert torch.cuda.get_device_name() in said
    (able,) = [line for line in said.splitlines() if "run kernels" in line]
    assert "yes" in able


def test_explain() -> None:
    shapes = "x=bf16[16384,1024] w=bf16[1024,1024] bias=bf16[1024]"
    said = comfuse("explain", "tests/cli/program.py:layer_norm", "--shapes", shapes)
    assert "between the tiles of a row block" in said
