"""The demo where there is no GPU: it does what it can and says what it left out."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from comfuse import demo
from comfuse.build import toolkit
from comfuse.cli import main

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


def test_no_rounds_are_refused():
    result = CliRunner().invoke(main, ["demo", "--rounds", "0"])
    assert result.exit_code == 2
    assert "'--rounds': 0 is not in the range x>=1" in result.output


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


@pytest.mark.parametrize("wrong", [False, True])
def test_the_report_of_a_gpu_run(lines, monkeypatch, wrong):
    """The part behind the launch, with CPU tensors in place of a card."""
    from comfuse import timing
    from comfuse.ops import native

    times = {"cuBLAS, GEMM alone": 50.0, "PyTorch eager": 150.0, "TorchInductor": 80.0, "ComFuse": 60.0}

    def time_interleaved(graphs, rounds):
        assert list(graphs) == list(times)
        return {name: timing.Timing(us, us - 1, us + 1) for name, us in times.items()}

    monkeypatch.setattr(demo, "M", 512)
    monkeypatch.setattr(native, "load", lambda: native._LIBRARY)  # as it is: nothing is built here
    monkeypatch.setattr(timing, "capture", lambda call: call())
    monkeypatch.setattr(timing, "time_interleaved", time_interleaved)
    monkeypatch.setattr(torch, "compile", lambda fn, **_: fn)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Card")
    if wrong:
        monkeypatch.setattr(demo, "fuse", lambda fn: lambda *inputs: -fn(*inputs))
    shapes = [(512, demo.K), (demo.N, demo.K), (demo.N,), (512, demo.N), (demo.N,), (demo.N,)]
    inputs = [torch.randn(shape).bfloat16() for shape in shapes]
    assert demo._on_gpu(lines.append, inputs, rounds=3, inductor=True) == int(wrong)
    table = "\n".join(lines)
    assert "Card, torch" in table
    assert "59.0 to 61.0    1.20" in table
    assert "1.33 x as fast as the best other whole program" in table
