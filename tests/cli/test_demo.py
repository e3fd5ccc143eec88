"""The demo where there is no GPU: it does what it can and says what it left out."""

from __future__ import annotations

import pytest
import torch

from comfuse import demo
from comfuse.build import toolkit

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a GPU")


@pytest.fixture
def lines():
    return []


def test_without_compiler(lines, cache_dir, monkeypatch, tmp_path):
    monkeypatch.setattr(toolkit, "_cuda_candidates", lambda: iter([("a place", tmp_path)]))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert demo.run(lines.append) == 0
    text = "\n".join(lines)
    assert "h = a @ b.T + bias + residual" in text
    assert "COMFUSE_EXPORT(cf_sm90_" in text
    assert "not compiled: nvcc not found" in text
    assert "error against float64" in text
    assert "the kernel was not compiled" in text
    assert "the kernel was not run, checked or timed: there is no CUDA device" in text


def test_with_jit_off(lines, cache_dir, monkeypatch):
    monkeypatch.setenv("COMFUSE_JIT", "off")
    assert demo.run(lines.append) == 0
    assert any("not compiled:" in line and "COMFUSE_JIT=off" in line for line in lines)


@pytest.mark.slow
def test_with_compiler(lines, cache_dir):
    from comfuse.errors import ToolchainError

    try:
        toolkit.find_cuda()
    except ToolchainError as e:
        pytest.skip(f"no compiler: {e}")
    assert demo.run(lines.append) == 0
    text = "\n".join(lines)
    assert "compiled in" in text
    assert " 0 bytes of spills" in text
