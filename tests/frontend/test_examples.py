"""The example functions: one kernel each, right against float64, and explained in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import comfuse
from comfuse import fallbacks
from comfuse.cli import main
from tests.frontend import examples
from tests.frontend.support import check, tensor

FILE = str(Path(examples.__file__))
N, K, LEAD = 128, 32, (2, 5)


def arguments(name: str) -> list[Any]:
    x, w, tile, row = (
        tensor(*LEAD, K),
        tensor(N, K, seed=1) / K**0.5,
        tensor(*LEAD, N, seed=2),
        tensor(N, seed=3),
    )
    return {
        "masked_softmax": [x, w, tile > -1, 1.5],
        "swiglu_norm": [x, tensor(2 * N, K, seed=1) / K**0.5, tile, row],
        "norm_to_fp8": [x, w, row, tensor(N, seed=4), tensor(N, seed=5)],
        "gelu_backward": [x, tensor(K, N, seed=6) / K**0.5, tile],
        "queries": [x, w, tensor(examples.HEAD, seed=7)],
        "cross_entropy": [x[0], w, torch.tensor([3, 0, -1, 127, 64])],
    }[name]


# What each is about, as comfuse explain says it.
SAID = {
    "masked_softmax": ("where(mask, ", "reduces scores by row_softmax", "temperature: a run-time scalar"),
    "swiglu_norm": ("2 products", "silu(a @ b0.T) * (a @ b1.T) + residual", "stores h", "stores y1"),
    "norm_to_fp8": ("row_welford", "by row_max", "  2  ", "e4m3"),
    "gelu_backward": ("B contiguous along N", "y1 = col_sum(d)", "the last tile of each block of columns"),
    "queries": ("in heads of 64 columns", "per row and 64 columns", "weight is copied at each call"),
    "cross_entropy": ("reduces acc by row_softmax", "the last tile of each row block stores y", "(M,) int64"),
}
SHAPES = {
    "masked_softmax": "x=bf16[8192,512] w=bf16[2048,512] mask=bool[8192,2048] temperature=1.5",
    "swiglu_norm": "x=bf16[8192,4096] w=bf16[8192,4096] residual=bf16[8192,4096] weight=bf16[4096]",
    "norm_to_fp8": "x=bf16[8192,4096] w=bf16[4096,4096] bias=bf16[4096] weight=bf16[4096] shift=bf16[4096]",
    "gelu_backward": "grad=bf16[16384,1024] w=bf16[1024,4096] pre=bf16[16384,4096]",
    "queries": "x=bf16[4,2048,2048] w=bf16[2048,2048] weight=bf16[64]",
    "cross_entropy": "x=bf16[8192,4096] w=bf16[32000,4096] target=int64[8192]",
}


def function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(examples, name)
    return found


@pytest.mark.parametrize("name", [name for name in SAID if name != "norm_to_fp8"])
def test_means_what_torch_computes(name):
    region = check(function(name), *arguments(name), tolerance=1e-5)
    assert len(region.kernels) == 1
    assert region.any_rows


def test_fp8_and_its_scale():
    args = arguments("norm_to_fp8")
    y, scale = comfuse.fuse(examples.norm_to_fp8)(*args)
    double = [t.double() for t in args]
    h = torch.nn.functional.layer_norm(torch.nn.functional.linear(*double[:3]), (N,), *double[3:])
    assert (y.dtype, scale.dtype, scale.shape) == (torch.float8_e4m3fn, torch.float32, LEAD)
    torch.testing.assert_close(scale.double(), h.abs().amax(-1) / 448, rtol=1e-4, atol=0)
    # e4m3 has four significant bits: half a step is a sixteenth of the value, and 2^-10 below the normals.
    torch.testing.assert_close(
        y.double() * scale.double()[..., None], h, rtol=1 / 16, atol=float(scale.max()) / 512
    )


@pytest.mark.parametrize("name", SAID)
def test_fused_on_the_cpu(name):
    fallbacks.reset()
    args = arguments(name)
    expected = function(name)(*args)
    found = comfuse.fuse(function(name))(*args)
    results = zip(*((y,) if isinstance(y, torch.Tensor) else y for y in (found, expected)), strict=True)
    for y, z in results:
        assert (y.shape, y.dtype, y.stride()) == (z.shape, z.dtype, z.stride())
    assert all("copied" in reason for _, reason in fallbacks.counts())


@pytest.mark.parametrize("name", SAID)
def test_explained(name):
    result = CliRunner().invoke(main, ["explain", f"{FILE}:{name}", "--shapes", SHAPES[name]])
    assert result.exit_code == 0, result.output
    for words in (*SAID[name], "phases", "kernel for h200", "predicted"):
        assert words in result.output, words
    assert "not fused" not in result.output.split("not fused in this process")[0]


def test_two_kernels_are_explained_as_such():
    def batch_norm(x, w):
        return torch.nn.functional.batch_norm(torch.nn.functional.linear(x, w), None, None, training=True)

    said = str(comfuse.explain(batch_norm, tensor(20000, 64).to("meta"), tensor(128, 64).to("meta")))
    assert "2 kernels, one after the other" in said
    assert "kernel 1 of 2" in said
    assert "not fused" not in said.split("not fused in this process")[0]
