"""Attention as one kernel: batches, lengths and heads of real models and of none, masks, views."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import comfuse
from comfuse import fallbacks
from comfuse.ops import fused_attention
from tests.gpu.compare import relative_error, same_bits, tolerance
from tests.gpu.outputs import poison_allocator

pytestmark = pytest.mark.gpu
BF16, FP16 = torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    """Nothing falls back."""
    fallbacks.reset()
    yield
    assert fallbacks.counts() == {}


def normal(*size: int, dtype: torch.dtype = BF16) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(size))
    return torch.randn(size, device="cuda", generator=generator).to(dtype)


def exact(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, causal: bool = False) -> Tensor:
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias.double()
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(-1) @ v.double()


def close(y: Tensor, wanted: Tensor) -> bool:
    """Two roundings: of what meets v, and at the store."""
    return y.shape == wanted.shape and relative_error(y, wanted) <= 2**0.5 * tolerance(y.dtype, y.numel())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("m", [8, 64, 72, 128, 200])
def test_each_row_of_values_is_found(batch: int, m: int) -> None:
    """Small integers: each query sees one key, whose value is its place."""
    h, d, n = 192, 192, 64
    chosen = torch.randint(0, h, (batch, m), device="cuda", generator=torch.Generator("cuda").manual_seed(m))
    q = 4096 * torch.nn.functional.one_hot(chosen, d).to(BF16)
    k = torch.eye(h, d, device="cuda", dtype=BF16).expand(batch, h, d)
    v = (torch.arange(batch * h * n, device="cuda") % 127 - 63).reshape(batch, h, n).to(BF16)
    y = fused_attention(q, k, v, scale=1.0)
    assert torch.equal(y, v[torch.arange(batch, device="cuda")[:, None], chosen])


@pytest.mark.parametrize("d, n", [(64, 64), (128, 128), (64, 128), (40, 72), (8, 8), (128, 256)])
@pytest.mark.parametrize("h", [8, 64, 72, 512])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_against_float64(d: int, n: int, h: int, dtype: torch.dtype) -> None:
    for batch, m in ((1, 1), (5, 65), (3, 200)):
        q, k, v = (
            normal(batch, m, d, dtype=dtype),
            normal(batch, h, d, dtype=dtype),
            normal(batch, h, n, dtype=dtype),
        )
        y = fused_attention(q, k, v)
        poison_allocator(y)
        del y
        assert close(fused_attention(q, k, v), exact(q, k, v))


@pytest.mark.parametrize("batch, length, d", [(192, 512, 64), (2, 8192, 128)])
@pytest.mark.parametrize("kind", ["plain", "bias", "own bias", "causal"])
def test_lengths_of_models(batch: int, length: int, d: int, kind: str) -> None:
    q, k, v = (normal(batch, length, d) + 0.1 * i for i in range(3))
    shape = {"bias": (length, length), "own bias": (batch, length, length)}.get(kind)
    bias = None if shape is None else normal(*shape)
    y = fused_attention(q, k, v, bias, causal=kind == "causal")
    for b in (0, batch // 2, batch - 1):
        own = bias[b] if bias is not None and bias.ndim == 3 else bias
        assert close(y[b], exact(q[b], k[b], v[b], own, kind == "causal"))
    assert same_bits(y, fused_attention(q, k, v, bias, causal=kind == "causal"))


def test_heads_between_the_rows() -> None:
    q, k, v = (normal(2, 512, 12, 64).transpose(1, 2) for _ in range(3))
    assert close(fused_attention(q[0], k[0], v[0]), exact(q[0], k[0], v[0]))


# --- batches in two levels: sequences and heads -----------------------------------------------------------

SEQUENCES, HEADS, LENGTH = 12, 16, 512


def heads(length: int, count: int, d: int = 64) -> Tensor:
    """(sequences, heads, length, D), as a projection gives them: heads between the rows."""
    return normal(SEQUENCES, length, count * d).view(SEQUENCES, length, count, d).transpose(1, 2)


@pytest.mark.parametrize(
    "lead, rows",
    [((SEQUENCES, 1), 1), ((SEQUENCES, 1), LENGTH), ((1, HEADS), LENGTH), ((1, HEADS), 1), ((1, 1), 1)],
)
@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.bool])
@pytest.mark.parametrize("length", [LENGTH, 200])
def test_masks_of_models(lead: tuple[int, int], rows: int, dtype: torch.dtype, length: int) -> None:
    """None is copied: threads read those that TMA cannot."""
    q, k, v = (heads(length, HEADS).contiguous() for _ in range(3))
    drawn = normal(*lead, min(rows, length), length, dtype=torch.float32)
    bias = drawn > -1 if dtype is torch.bool else drawn.to(dtype)
    added = torch.where(bias, 0.0, -torch.inf) if dtype is torch.bool else bias
    assert close(fused_attention(q, k, v, bias), exact(q, k, v, added))


@pytest.mark.parametrize("shape", [(12, 1, 1, 512), (12, 1, 512, 512), (1, 16, 512, 512), (16, 512, 512)])
@pytest.mark.parametrize("values", [False, True])
def test_masks_in_functions(shape: tuple[int, ...], values: bool) -> None:
    """Scores and their softmax as one kernel, and with the values behind them."""

    def scores(q: Tensor, k: Tensor, b: Tensor) -> Tensor:
        return (q @ k.mT * 0.125 + b).softmax(-1)

    def attention(q: Tensor, k: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return scores(q, k, b) @ v

    q, k, v = (heads(LENGTH, HEADS).contiguous() for _ in range(3))
    b = normal(*shape)
    y = comfuse.fuse(attention)(q, k, b, v) if values else comfuse.fuse(scores)(q, k, b)
    p = (q.double() @ k.double().mT * 0.125 + b.double()).softmax(-1)
    assert close(y, p @ v.double() if values else p)


@pytest.mark.parametrize("served", [1, 4, 16])
def test_heads_that_serve_several(served: int) -> None:
    q = heads(LENGTH, HEADS).contiguous()
    k, v = (heads(LENGTH, HEADS // served) for _ in range(2))
    if served not in (1, HEADS):  # three levels: sequences, heads, those that each serves
        k, v = k.contiguous(), v.contiguous()
    wanted = exact(q, *(t.repeat_interleave(served, 1) for t in (k, v)))
    assert close(fused_attention(q, k, v, enable_gqa=True), wanted)


def test_keys_and_values_with_heads_between_the_rows() -> None:
    q, k, v = heads(200, HEADS).contiguous(), heads(200, HEADS), heads(200, HEADS)
    assert same_bits(fused_attention(q, k, v), fused_attention(q, k.contiguous(), v.contiguous()))


def test_growing_maxima_and_masked_blocks() -> None:
    """Whatever came before has to be scaled down in each block, or weighs nothing."""
    q, k, v = (normal(3, 512, 64) for _ in range(3))
    rising = torch.linspace(-60, 60, 512, device="cuda").expand(512, 512).contiguous()
    masked = torch.zeros(512, 512, device="cuda")
    masked[:, :200] = -torch.inf
    lowest = torch.full((512, 512), torch.finfo(torch.float32).min, device="cuda")
    for bias in (rising, rising.flip(1).contiguous(), masked, masked.flip(1).contiguous(), lowest):
        assert close(fused_attention(q, k, v, bias), exact(q, k, v, bias))


def test_a_row_s_nan_stays_in_its_row() -> None:
    q, k, v = (normal(3, 200, 64) for _ in range(3))
    clean = fused_attention(q, k, v)
    bias = torch.zeros(3, 200, 200, device="cuda")
    for (batch, row), bad in zip(
        itertools.product((0, 2), (0, 64, 199)), [torch.nan, -torch.inf] * 3, strict=True
    ):
        bias[batch, row] = bad
    y = fused_attention(q, k, v, bias)
    spoilt = (bias[..., 0] != 0) | bias[..., 0].isnan()
    assert y[spoilt].isnan().all()
    assert same_bits(y[~spoilt], clean[~spoilt])
