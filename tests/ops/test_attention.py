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
    if bias is not None and bias.dtype is torch.bool:
        scores = scores.masked_fill(~bias, -torch.inf)
    elif bias is not None:
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
HEADS = random(2, 4, 8, 16)


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
        ((Q, K, V, random(24, 8)), ShapeError, "bias is of shape (24, 8); allowed: what broadcasts to (2, 8"),
        (
            (Q, K, V, random(1, 2, 8, 24)),
            ShapeError,
            "bias is of shape (1, 2, 8, 24); allowed: what broadcasts",
        ),
        ((HEADS, HEADS[:, :2], HEADS), ShapeError, "enable_gqa=True lets heads serve several of q's"),
        ((HEADS, HEADS[:, :2], HEADS[:, :1]), ShapeError, "k is of shape (2, 2, 8, 16)"),
        ((Q.float(), K, V), DTypeError, "q is torch.float32"),
        ((Q, K.half(), V), DTypeError, "k is torch.float16; allowed: torch.bfloat16"),
        ((Q, K, V, torch.ones(8, 24).int()), DTypeError, "bias is torch.int32"),
    ],
)
def test_what_is_refused(arguments: tuple[Any, ...], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=re.escape(reason)):
        fused_attention(*arguments)


def test_heads_that_serve_no_whole_number_of_others_are_refused() -> None:
    for heads in (3, 8):
        k = random(2, heads, 8, 16)
        with pytest.raises(ShapeError, match=r"or as the last of .* what divides it"):
            fused_attention(HEADS, k, k, enable_gqa=True)
    with pytest.raises(ShapeError, match=r"v is of shape .* with k's \(2, 2\)"):
        fused_attention(HEADS, HEADS[:, :2], HEADS, enable_gqa=True)


# --- masks, groups of heads, autocast ----------------------------------------------------------------------

BIASES = [
    (40,), (24, 1), (2, 1, 1, 40), (2, 1, 24, 40), (1, 3, 24, 40), (3, 24, 40), (3, 1, 40), (2, 3, 1, 40),
    (2, 3, 24, 40), (1, 1, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("shape", BIASES)
@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.bool])
@pytest.mark.parametrize("grad", [False, True])
def test_what_broadcasts_is_a_bias_or_a_mask(shape: tuple[int, ...], dtype: torch.dtype, grad: bool) -> None:
    q, k, v = random(2, 3, 24, 16), random(2, 3, 40, 16), random(2, 3, 40, 8)
    bias = random(*shape) > -0.5 if dtype is torch.bool else random(*shape, dtype=dtype)
    for causal in (False, True):
        bias = bias | torch.ones(shape).bool() if causal and dtype is torch.bool else bias
        with torch.enable_grad():
            y = fused_attention(q.requires_grad_(grad), k, v, bias, causal=causal).detach()
        exactly = exact(q, k, v, bias, causal, None)
        assert torch.equal(y.isnan(), exactly.isnan()) or grad
        assert close(y.nan_to_num(), exactly.nan_to_num())


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("turned", [False, True])
def test_heads_that_serve_several(heads: int, turned: bool) -> None:
    sizes = [(8, 6, 16), (40, heads, 16), (40, heads, 8)]
    q, k, v = (random(2, *size).transpose(1, 2) for size in sizes)
    if not turned:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    wanted = exact(q, *(t.repeat_interleave(6 // heads, 1) for t in (k, v)), None, False, None)
    assert close(fused_attention(q, k, v, enable_gqa=True), wanted)
    copied = {("fused_attention", "q copied: one stride does not walk its leading sizes"): 1}
    if heads == 2:  # batches, heads and those that each serves are three levels
        walk = "two strides do not walk its leading sizes"
        copied |= {("fused_attention", f"{name} copied: {walk}"): 1 for name in "kv"}
    assert fallbacks.counts() == (copied if turned else {})
    y = fused_attention(q.requires_grad_(), k, v, enable_gqa=True)
    assert close(y.detach(), wanted)


def test_autocast_converts() -> None:
    q, k, v, bias = (random(2, 8, 16, dtype=torch.float32) for _ in range(4))
    with torch.autocast("cpu", BF16):
        y = fused_attention(q, k.bfloat16(), v, bias[..., :8])
        assert fused_attention(q.half(), k.half(), v.half()).dtype is torch.float16
    assert y.dtype is BF16
    assert close(y, exact(q, k, v, bias[..., :8], False, None))
    with pytest.raises(DTypeError, match=re.escape("q is torch.float32")):
        fused_attention(q, k, v)


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks_and_groups_of_heads_compiled(dynamic: bool) -> None:
    torch.compiler.reset()
    q, k, v, mask = random(2, 4, 8, 16), random(2, 2, 24, 16), random(2, 2, 24, 8), random(2, 1, 1, 24) > -1
    if dynamic:
        for t in (q, k, v, mask):
            torch._dynamo.mark_dynamic(t, 0)
    compiled = torch.compile(
        lambda q, k, v, mask: fused_attention(q * 2, k, v, mask, enable_gqa=True),
        fullgraph=True,
        backend="aot_eager",
    )
    wanted = exact(q * 2, *(t.repeat_interleave(2, 1) for t in (k, v)), mask, False, None)
    assert close(compiled(q, k, v, mask), wanted)


@pytest.mark.parametrize("shape", [(2, 1, 1, 40), (2, 1, 24, 40), (1, 3, 24, 40), (2, 3, 24, 40), (24, 40)])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.BOOL])
@pytest.mark.parametrize("expanded", [False, True])
def test_nothing_but_q_is_copied_where_heads_lie_between_the_rows(
    host: Host, shape: tuple[int, ...], dtype: DType, expanded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strided = ("bias",) if shape[-2] == 1 else ()
    chain = catalog.attention(8, 16, 40, DType.BF16, bias=dtype, strided=strided)
    host.register(chain, run=emulate(chain))
    host.launched.clear()

    def run(text: str, q: Tensor, k: Tensor, *rest: Any) -> Tensor:
        (y,) = torch.ops.comfuse_host.region(text, q, k, list(rest[:-1]), [rest[-1]])
        return y

    monkeypatch.setattr("comfuse.ops.attention.FIXED", {1: [run] * 3})
    q, k, v = (random(2, s, 3, d).transpose(1, 2) for s, d in ((24, 16), (40, 16), (40, 8)))
    bias = random(*shape)
    bias = bias > -1 if dtype is DType.BOOL else bias
    bias = bias.expand(2, 3, 24, 40) if expanded else bias
    assert close(fused_attention(q, k, v, bias, scale=0.25), exact(q, k, v, bias, False, 0.25))
    args = host.launched[-1].args
    assert (args.b[0].data, args.b[1].data) == (k.data_ptr(), v.data_ptr())
    assert args.operands[0].data == bias.data_ptr()
    walk = "one stride does not walk its leading sizes"
    assert fallbacks.counts() == {("fused_attention", f"q copied: {walk}"): 1}


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
