"""Attention as a call, on the CPU: numbers, views, what is refused, and through the binding."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from comfuse import fallbacks
from comfuse.errors import ArgumentError, DTypeError, FallbackError, ShapeError
from comfuse.generator import catalog
from comfuse.generator.spec import DType, Major
from comfuse.ops import fused_attention, programs
from tests.ops.emulated import emulate
from tests.ops.host_binding import Host

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _counts() -> Any:
    fallbacks.reset()
    yield
    fallbacks.reset()


def random(*size: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(dtype)


def exact(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).bool().tril(), -torch.inf)
    return scores.softmax(-1) @ v


def close(y: Tensor, wanted: Tensor) -> bool:
    return y.shape == wanted.shape and bool((y.double() - wanted).norm() <= 6e-3 * wanted.norm())


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0, 3)])
@pytest.mark.parametrize("kind", ["plain", "causal", "bias", "own bias", "scaled", "fp16"])
def test_numbers(lead: tuple[int, ...], kind: str) -> None:
    dtype = torch.float16 if kind == "fp16" else BF16
    m, h, d, n = 24, 40, 16, 8
    q, k, v = (
        random(*lead, m, d, dtype=dtype),
        random(*lead, h, d, dtype=dtype),
        random(*lead, h, n, dtype=dtype),
    )
    bias = {"bias": random(m, h, dtype=torch.float32), "own bias": random(*lead, m, h)}.get(kind)
    scale = 0.5 if kind == "scaled" else None
    y = fused_attention(q, k, v, bias, causal=kind == "causal", scale=scale)
    assert y.dtype is dtype
    assert close(y, exact(q, k, v, bias, kind == "causal", scale))
    assert not fallbacks.counts()


def test_heads_between_the_rows() -> None:
    q, k, v = (random(2, 12, 3, 16).transpose(1, 2) for _ in range(3))
    assert close(fused_attention(q, k, v), exact(q, k, v, None, False, None))


def test_a_masked_row_is_nan() -> None:
    q, k, v = random(1, 8, 16), random(1, 8, 16), random(1, 8, 8)
    bias = torch.zeros(8, 8)
    bias[3] = -torch.inf
    y = fused_attention(q, k, v, bias)
    assert y[0, 3].isnan().all()
    assert not y[0, [0, 1, 2, 4, 5, 6, 7]].isnan().any()


def test_gradients_are_torch_s_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for causal in (False, True):
        inputs = [random(2, 8, 16).requires_grad_() for _ in range(3)] + [random(2, 8, 8)]
        doubles = [t.detach().double().requires_grad_() for t in inputs[:3]]
        grad = random(2, 8, 16)
        fused_attention(*inputs, causal=causal).backward(grad)
        exact(*doubles, inputs[3], causal, None).backward(grad.double())
        for got, wanted in zip(inputs, doubles, strict=False):
            assert got.grad is not None
            assert wanted.grad is not None
            assert (got.grad.double() - wanted.grad).norm() <= 3e-2 * wanted.grad.norm()
    assert fallbacks.counts() == {
        ("fused_attention", "a gradient is wanted: torch's scaled_dot_product_attention runs"): 2
    }
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    with pytest.raises(FallbackError):
        fused_attention(*inputs)


Q, K, V = random(2, 8, 16), random(2, 24, 16), random(2, 24, 8)


@pytest.mark.parametrize(
    "arguments, error, reason",
    [
        ((3, K, V), ArgumentError, "q is of type int"),
        ((Q[0, 0], K, V), ShapeError, "q is of shape (16,); allowed: (..., M, D)"),
        ((Q[..., :0], K[..., :0], V), ShapeError, "q is of shape (2, 8, 0); allowed: (..., M, D), D, H and"),
        ((Q, K[:, :0], V[:, :0]), ShapeError, "k is of shape (2, 0, 16); allowed: (..., H, D), D, H and"),
        ((Q, K, V[..., :0]), ShapeError, "v is of shape (2, 24, 0); allowed: (..., H, N), D, H and"),
        ((Q, K[..., :8], V), ShapeError, "k is of shape (2, 24, 8)"),
        ((Q, K[:1], V), ShapeError, "k is of shape (1, 24, 16)"),
        ((Q, K, V[:, :8]), ShapeError, "v is of shape (2, 8, 8)"),
        ((Q, K, V, random(24, 8)), ShapeError, "bias is of shape (24, 8); allowed: (8, 24) or (2, 8, 24)"),
        ((Q.float(), K, V), DTypeError, "q is torch.float32"),
        ((Q, K.half(), V), DTypeError, "k is torch.float16; allowed: torch.bfloat16"),
        ((Q, K, V, torch.ones(8, 24).bool()), DTypeError, "bias is torch.bool"),
    ],
)
def test_what_is_refused(arguments: tuple[Any, ...], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=re.escape(reason)):
        fused_attention(*arguments)


def test_the_scale_is_checked() -> None:
    with pytest.raises(ArgumentError, match="fused_attention: scale is of type str; allowed: a number"):
        fused_attention(Q, K, V, scale="1")  # type: ignore[arg-type]


def test_compiled() -> None:
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: fused_attention(q * 2, k, v), fullgraph=True, backend="aot_eager"
    )
    assert close(compiled(Q, K, V), exact(Q * 2, K, V, None, False, None))


def test_nothing_is_copied_on_the_way_to_a_kernel(host: Host) -> None:
    """Values are read as they lie: their transpose is contiguous along N."""
    chain = catalog.attention(8, 16, 40, DType.BF16, bias=DType.BF16)
    host.register(chain, run=emulate(chain))
    heads = [random(2, size, 3, width).transpose(1, 2).flatten(0, 1) for size, width in ((24, 16), (40, 16))]
    q, k = (t.contiguous() for t in heads)
    v, bias = random(6, 40, 8), random(24, 40)
    (y,) = torch.ops.comfuse_host.region(chain.text(), q, k, [bias, v.mT], [0.25])
    assert close(y, exact(q, k, v, bias, False, 0.25))
    assert host.copies == [0, 0, 0]
    (launch,) = host.launched
    second = launch.args.b[1]
    assert (second.data, second.stride, second.batch_stride) == (v.data_ptr(), 8, 40 * 8)
    assert programs.parse(chain.text()).factors[1].major is Major.MN
