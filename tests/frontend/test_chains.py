"""GEMMs back to back: what is traced as a chain, and why another is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

import comfuse
from comfuse import fallbacks, fuse, trace
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec, normalize_chain
from comfuse.generator.plan.chain import plan_chain
from comfuse.generator.spec import DType
from comfuse.reference.accuracy import relative_error
from tests.frontend.support import LEAD, K, N, check, residual, row, tensor, weight, x

H = N  # of the middle: weight() is (N, K)
OUT = 24


def second(n: int = OUT) -> Tensor:
    return tensor(n, H, seed=7)


def out(seed: int = 4, *lead: int) -> Tensor:
    return tensor(*lead, OUT, seed=seed)


# --- what a chain may be ----------------------------------------------------------------------------------


def plain(x, w0, w1):
    return F.gelu(x @ w0.T) @ w1.T


def linears(x, w0, b0, w1, b1):
    return F.linear(F.silu(F.linear(x, w0, b0)), w1, b1)


def bare(x, w0, w1):
    """A weight of low rank."""
    return F.linear(F.linear(x, w0), w1)


def gated(x, w_gate, w_up, w_down):
    return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)


def packed_gate(x, w, w_down):
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.linear(F.silu(gate) * up, w_down)


def edge_block(x, w0, b0, w1, b1, g, b):
    """Of a graph network: as wide inside as outside."""
    h = F.layer_norm(F.linear(F.silu(F.linear(x, w0, b0)), w1, b1), (K,), g, b)
    return x + h


def norm_ahead_of_the_residual(x, w0, w1, r, g):
    return F.rms_norm(F.relu(x @ w0.t()) @ w1.t(), (OUT,), g, 1e-6) + r


def scaled_in_float32(x, w0, r, w1):
    """Which RMSNorm may read, as it only scales."""
    return F.rms_norm(x @ w0.t() + r, (H,), eps=1e-6).to(x.dtype) @ w1.t()


def shifted_in_float32(x, w0, b0, mask, w1):
    """What was rounded before."""
    h = torch.where(mask > 0, 0, F.linear(x, w0, b0).float() * 0.5)
    return (h - h.mean(-1, keepdim=True)).to(x.dtype) @ w1.t()


def residual_between(x, w0, r, w1):
    return (torch.tanh(F.linear(x, w0)) + r) @ w1.t()


def column_between(x, w0, scale, w1):
    return (F.linear(x, w0) * scale) @ w1.t()


def flat_rows(x, w0, w1):
    h = F.relu(F.linear(x.flatten(0, 1), w0))
    return F.linear(h.view(*x.shape[:-1], -1), w1)


def split_rows(x, w0, w1, r):
    """The second part has rows in two dimensions, of which one is broadcast; the first has one."""
    return F.linear(F.relu(F.linear(x, w0)), w1) + r


def two_results(x, w0, w1):
    y = F.relu(x @ w0.t()) @ w1.t()
    return y, y.float().amax(-1)


def heads(x, w0, w1):
    y = F.relu(F.linear(x, w0)) @ w1.t()
    return y.view(*y.shape[:-1], 3, 8).transpose(1, 2).contiguous()


def scaled(x, w0, w1, s):
    return (F.relu(x @ w0.t()) * s) @ w1.t() * s


def filled(x, w0, w1):
    """Takes no more than a shape from the middle."""
    h = F.relu(x @ w0.t())
    return h @ w1.t() + torch.full_like(h[..., :1], 2.0)


CHAINS: list[tuple[Callable[..., Any], tuple[Any, ...], int]] = [
    (plain, (x(), weight(), second()), 1),
    (scaled_in_float32, (x(), weight(), residual(dtype=torch.float32), second()), 1),
    (shifted_in_float32, (x(), weight(), row(), residual(), second()), 1),
    (linears, (x(), weight(), row(), second(), out()), 1),
    (bare, (x(), weight(), second()), 1),
    (gated, (x(), weight(), tensor(H, K, seed=9), second()), 2),
    (packed_gate, (x(), tensor(2 * H, K), second()), 2),
    (edge_block, (x(), weight(), row(), second(K), *(tensor(K, seed=s) for s in (1, 2, 3))), 1),
    (norm_ahead_of_the_residual, (x(), weight(), second(), out(5, *LEAD), out()), 1),
    (residual_between, (x(), weight(), residual(), second()), 1),
    (column_between, (x(), weight(), tensor(*LEAD, 1), second()), 1),
    (flat_rows, (x(), weight(), second()), 1),
    (split_rows, (x(), weight(), second(), out(5, LEAD[0], 1)), 1),
    (two_results, (x(), weight(), second()), 1),
    (heads, (x(), weight(), second()), 1),
    (scaled, (x(), weight(), second(), 0.5), 1),
    (filled, (x(), weight(), second()), 1),
]


@pytest.mark.parametrize("fn, args, products", CHAINS, ids=[fn.__name__ for fn, _, _ in CHAINS])
def test_chains(fn: Callable[..., Any], args: tuple[Any, ...], products: int) -> None:
    region = check(fn, *args, tolerance=1e-5)
    chain = region.spec
    assert isinstance(chain, ChainSpec)
    assert [(link.n, link.k, link.products) for link in chain.links] == [
        (H, K, products),
        (chain.last.n, H, 1),
    ]
    assert region.kernels == (chain,)
    assert region.any_rows
    assert plan_chain(chain, m=65536).tile_n >= chain.last.n


@pytest.mark.parametrize("fn, args, products", CHAINS, ids=[fn.__name__ for fn, _, _ in CHAINS])
def test_one_region_serves_all_rows(fn: Callable[..., Any], args: tuple[Any, ...], products: int) -> None:
    fused = fuse(fn)
    for lead in (LEAD, (5, 4), (1, 1)):
        given = [
            tensor(*(1 if t.shape[d] == 1 else lead[d] for d in (0, 1)), t.shape[-1], seed=3)
            if isinstance(t, Tensor) and t.dim() == 3
            else t
            for t in args
        ]
        exact = fn(*(t.double() if isinstance(t, Tensor) else t for t in given))
        found = fused(*given)
        for y, z in zip(pytree.tree_leaves(found), pytree.tree_leaves(exact), strict=True):
            assert y.shape == z.shape
            assert y.is_contiguous()
            # The middle and the result are rounded.
            assert (y.double() - z).norm() <= 8e-3 * z.norm()
    assert len(fused.regions) == 1


def three(x, w0, w1, w2):
    return F.relu(F.relu(x @ w0.t()) @ w1.t()) @ w2.t()


def network(x, w0, b0, w1, b1, w2, b2, g, b):
    """The update of MeshGraphNets."""
    h = F.relu(F.linear(F.relu(F.linear(x, w0, b0)), w1, b1))
    return F.layer_norm(F.linear(h, w2, b2), (K,), g, b) + x


def residual_in_the_second(x, w0, w1, r, w2):
    """Factors of the later layers that are contiguous along N, and an operand of rows between these."""
    h = F.silu(F.relu(x @ w0.t()) @ w1.t().contiguous() + r)
    return h @ w2.t().contiguous()


THREE: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (three, (x(), weight(), second(H), second())),
    (
        network,
        (x(), weight(), row(), second(H), row(), second(K), *(tensor(K, seed=s) for s in (1, 2, 3))),
    ),
    (residual_in_the_second, (x(), weight(), second(H), residual(), second())),
]


@pytest.mark.parametrize("fn, args", THREE, ids=[fn.__name__ for fn, _ in THREE])
def test_three_gemms(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    region = check(fn, *args, tolerance=1e-5)
    chain = region.spec
    assert isinstance(chain, ChainSpec)
    assert [(link.n, link.k) for link in chain.links] == [(H, K), (H, H), (chain.last.n, H)]
    assert region.kernels == (chain,)
    assert region.any_rows
    assert plan_chain(chain, m=65536).further
    found, exact = fuse(fn)(*args), fn(*(t.double() for t in args))
    assert found.shape == exact.shape
    assert (found.double() - exact).norm() <= 1e-2 * exact.norm()  # rounded in both middles


def test_a_result_of_two_kinds_of_rows() -> None:
    """A region knows the rows that it was traced with, where the function needs them."""

    def program(x, w0, w1):
        return F.relu(x @ w0.t()) @ w1.t() / x.shape[0]

    region = check(program, x(), weight(), second(), tolerance=1e-5)
    assert not region.any_rows


def test_the_chain_is_that_of_the_named_op() -> None:
    def mlp(x, w0, b0, w1, b1, residual, norm_weight, norm_bias, eps):
        h = F.gelu(F.linear(x, w0, b0))
        y = F.linear(h, w1, b1) + residual
        mean = y.float().mean(-1, keepdim=True)
        var = y.float().var(-1, keepdim=True, correction=0)
        return ((y - mean) * torch.rsqrt(var + eps) * norm_weight + norm_bias).to(x.dtype)

    traced = trace(mlp, x(), weight(), row(), second(), out(), out(4, *LEAD), out(), out(), 1e-5)
    bf16 = dict.fromkeys(("b0", "b1", "residual", "norm_weight", "norm_bias"), DType.BF16)
    op = catalog.mlp(OUT, K, H, DType.BF16, norm="layernorm", **bf16)
    assert isinstance(traced, ChainSpec)
    for ours, theirs in zip(normalize_chain(traced).links, normalize_chain(op).links, strict=True):
        assert (ours.n, ours.k) == (theirs.n, theirs.k)
        assert sorted(node.op for node in ours.nodes) == sorted(node.op for node in theirs.nodes)
        assert sorted(o.space.value for o in ours.operands) == sorted(o.space.value for o in theirs.operands)
    found, wanted = plan_chain(traced), plan_chain(op)
    assert (found.shape, found.weights, found.predicted_us) == (
        wanted.shape,
        wanted.weights,
        wanted.predicted_us,
    )


def test_names() -> None:
    def program(x, w0, w1):
        hidden = F.relu(x @ w0.t())
        return hidden @ w1.t()

    for fn, middle in ((program, "hidden"), (plain, "middle")):
        chain = trace(fn, x(), weight(), second())
        assert isinstance(chain, ChainSpec)
        assert [link.outputs[0].name for link in chain.links] == [middle, "y"]
    longer = trace(three, x(), weight(), second(H), second())
    assert isinstance(longer, ChainSpec)
    assert [link.outputs[0].name for link in longer.links] == ["middle", "middle1", "y"]


def test_under_autocast() -> None:
    args = (x().float(), weight().float(), row().float(), second().float(), out().float())
    with torch.autocast("cpu", torch.bfloat16):
        fused = fuse(linears)
        y = fused(*args)
    assert (y.dtype, fused.regions[0].spec.links[1].dtype) == (torch.bfloat16, DType.BF16)  # type: ignore[union-attr]
    exact = linears(*(t.double() for t in args))
    assert (y.double() - exact).norm() <= 8e-3 * exact.norm()


def test_a_call_launches_the_op_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fallbacks.reset()
    texts: list[str] = []
    region = comfuse.ops.region
    monkeypatch.setattr(comfuse.ops, "region", lambda text, *rest: texts.append(text) or region(text, *rest))
    fused = fuse(gated)
    args = (x(), weight(), tensor(H, K, seed=9), second())
    for _ in range(2):
        fused(*args)
    assert texts == [fused.regions[0].spec.text()] * 2
    assert fallbacks.counts() == {}


def attention(q, k, v, mask):
    return torch.softmax(q @ k.mT / 8 + mask, -1) @ v


@pytest.mark.parametrize("lead", [(6,), (2, 3)], ids=["batch", "batch and heads"])
def test_attention_is_a_chain(lead: tuple[int, ...]) -> None:
    q, k, v = (tensor(*lead, 40, 64) for _ in range(3))
    inputs = (q, k, v, tensor(*lead, 40, 40))
    spec = trace(attention, *inputs)
    assert isinstance(spec, ChainSpec)
    assert spec.links[0].batched
    exact = attention(*(x.double() for x in inputs))
    error = relative_error(comfuse.fuse(attention)(*inputs), exact)
    assert error <= 2 * relative_error(attention(*inputs), exact)


# --- what is said of it -----------------------------------------------------------------------------------


def test_explain_shows_the_chain() -> None:
    meta = [t.to("meta") for t in (x(64, 1024), weight(), row(), second(), out())]
    found = comfuse.explain(linears, *meta)
    text = str(found)
    assert found.kernel is not None
    assert found.kernel.startswith("cf_sm90_chain_bf16_")
    assert f"M = 65536, K = {K}, H = {H}, N = {OUT}, bf16" in text
    assert "between the GEMMs" in text
    assert "stays in registers" in text


def test_explain_shows_a_kernel_a_link_where_chains_are_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_CHAINS", "0")
    found = comfuse.explain(linears, *(t.to("meta") for t in (x(64, 1024), weight(), row(), second(), out())))
    assert (found.kernel, found.plan) == (None, None)
    assert "not one: COMFUSE_CHAINS is 0, which turns off kernels of GEMMs back to back" in str(found)
    assert [plan.spec.n for plan in found.stages] == [H, OUT]


def test_explain_says_where_a_kernel_a_link_is_faster() -> None:
    def wide(x, w0, w1):
        return F.gelu(x @ w0.t()) @ w1.t()

    sizes = ((128, 256), (8192, 256), (256, 8192))
    found = comfuse.explain(
        wide, *(torch.empty(*size, dtype=torch.bfloat16, device="meta") for size in sizes)
    )
    assert found.plan is None
    assert "a kernel for each GEMM is faster" in found.refused
    assert len(found.stages) == 2
