"""A kernel library at work: in a process that has no compiler and may not build, against float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from comfuse.library import builder, catalogue, lookup
from comfuse.ops import resolver
from tests.processes import ROOT, python_path

pytestmark = pytest.mark.gpu

N, K = 384, 256
VECTORS = {"bias": "same", "residual": "same", "ln_weight": "same", "ln_bias": "same"}
CATALOGUE = {
    "kernel": [
        {"program": "layernorm", "shapes": [[N, K]], **VECTORS},
        {"program": "layernorm", "shapes": [[N, K]], **VECTORS, "constants": {"eps": 1e-5}},
        {"program": "gated", "shapes": [[N, K]], "rows": ["many"]},
        {"program": "softmax", "shapes": [[N, K]], "rows": [128]},
    ]
}

#: Runs ops, a traced function and a compiled one; COMFUSE_STRICT makes each fallback an error.
PROGRAM = f"""\
import torch, torch.nn.functional as F
import comfuse
from comfuse import fallbacks, ops
from comfuse.library import lookup
from comfuse.reference.accuracy import relative_error, tolerance, weighty

def block(x, w, bias, residual, weight, shift):
    h = F.linear(x, w, bias) + residual
    return F.layer_norm(h, (h.shape[-1],), weight, shift)

def check(y, eager, *tensors):
    right = eager(*(t.double() for t in tensors))
    error = relative_error(y, right)
    assert error <= tolerance(y.dtype, weighty(right)), (error, tuple(y.shape))

torch.manual_seed(0)
for m in (1, 100, 300, 1000, 5000):
    sizes = [(m, {K}), ({N}, {K}), ({N},), (m, {N}), ({N},), ({N},)]
    t = [torch.randn(s, device="cuda").bfloat16() for s in sizes]
    check(ops.fused_gemm_layernorm(*t), block, *t)
    check(comfuse.fuse(block)(*t), block, *t)
x, w = t[:2]
gated = lambda x, w: F.silu(x @ w.t()) * (x @ w.t())
check(ops.fused_gated_gemm(x, w, w), gated, x, w)
check(ops.fused_gemm_softmax(x[:50], w), lambda x, w: torch.softmax(x @ w.t(), -1), x[:50], w)
compiled = torch.compile(block, options=comfuse.options(force=True))
check(compiled(*t), block, *t)
assert fallbacks.counts() == {{}}, fallbacks.counts()
assert lookup.refusals() == {{}}, lookup.refusals()
try:
    ops.fused_gemm_softmax(x, w)  # too many rows for what the library has
except comfuse.errors.FallbackError as e:
    assert "its kernels serve 1 to 128 rows" in str(e), e
else:
    raise AssertionError("built something")
assert sum(lookup.refusals().values()) >= 1
print("ok")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("library")
    made = builder.build_library([catalogue.parse("gpu", CATALOGUE)], target)
    assert not made.refused
    return target


def test_a_process_without_a_compiler(folder: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": python_path(),
        "COMFUSE_LIBRARY": str(folder),
        "COMFUSE_CACHE_DIR": str(tmp_path / "empty"),
        "COMFUSE_CUTLASS_DIR": "/nothing",
        "COMFUSE_JIT": "off",
        "COMFUSE_STRICT": "1",
        "CUDA_HOME": "/nothing",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert not list((tmp_path / "empty").glob("kernels/*"))


def test_its_kernels_fit_this_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel can be inspected, spills nothing, and is found for the GPU's own planner name."""
    monkeypatch.setenv("COMFUSE_LIBRARY", str(folder))
    assert lookup.problems(folder) == []
    gpu = resolver.planner_gpu(torch.cuda.current_device())
    for entry in catalogue.parse("gpu", CATALOGUE).entries:
        rows = (1, 128) if entry.rows != (None,) else (2049, 2**31 - 1)
        kernel = lookup.kernel(entry.spec, rows, gpu)
        assert kernel is not None, lookup.why_not(entry.spec, rows, gpu)
        info = kernel.query()
        assert info.local_bytes == 0
        assert info.max_active_clusters > 0
