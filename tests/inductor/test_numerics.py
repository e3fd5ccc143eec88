"""Values of whole programs through torch.compile, against float64.

A fused program may be off by twice what torch's own operators are in half precision: both round each result
once, and what torch also rounds in between a kernel does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse.inductor import log
from comfuse.inductor.entrances import enable
from tests.inductor.interpreted import interpreted

N, K, M = 64, 48, 40
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    log.clear()


def half(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).to(torch.bfloat16)


def compiled(fn: Function, *, dynamic: bool | None = False) -> Function:
    return torch.compile(fn, backend=interpreted, dynamic=dynamic, fullgraph=True)


def fused() -> list[bool]:
    """Of each GEMM that was compiled, whether it was fused."""
    return [verdict.fused for verdict in log.verdicts()]


def flat(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def close(found: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
    for y, z, x in zip(found, eager, exact, strict=True):
        assert (y.dtype, y.shape, y.stride()) == (z.dtype, z.shape, z.stride())
        if y.numel():
            error, allowed = ((v.double() - x).abs().max().item() for v in (y, z))
            rounding = torch.finfo(y.dtype).eps / 2 * x.abs().max().item()
            assert error <= max(2 * allowed, rounding)


def check(fn: Function, *args: Tensor, gemms: int = 1, **options: Any) -> None:
    """Compares all results, with every GEMM fused."""
    with enable(force=True), torch.no_grad():
        found = compiled(fn, **options)(*args)
    assert fused() == [True] * gemms, log.counts()
    doubles = [x.double() if x.is_floating_point() else x for x in args]
    close(flat(found), flat(fn(*args)), flat(fn(*doubles)))


def check_gradients(fn: Function, *args: Tensor, gemms: int) -> None:
    """Compares the results and the gradients by all arguments, with ``gemms`` fused in both graphs."""
    with enable(force=True):
        found = gradients(compiled(fn), args, torch.bfloat16)
    assert sum(fused()) == gemms, log.counts()
    close(found, gradients(fn, args, torch.bfloat16), gradients(fn, args, torch.float64))


def gradients(fn: Function, args: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The results of ``fn`` for ``args`` in a dtype, and the gradients by all of them."""
    own = [x.detach().to(dtype).requires_grad_() for x in args]
    results = flat(fn(*own))
    weights = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y) for y in results]
    torch.autograd.backward(results, weights)
    return [*results, *(x.grad for x in own)]  # type: ignore[list-item]


# --- one GEMM, without gradients ------------------------------------------------------------------------


def gated(gate, up):
    return F.silu(gate) * up


POINTWISE: dict[str, Function] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda h: F.gelu(h, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": F.mish,
    "softcap": lambda h: 30.0 * torch.tanh(h / 30.0),
    "squared_relu": lambda h: F.relu(h).square(),
    "softmax": lambda h: F.softmax(h, -1),
    "log_softmax": lambda h: F.log_softmax(h, -1),
    "logsumexp": lambda h: torch.logsumexp(h, -1),
    "normalize": lambda h: F.normalize(h, dim=-1),
    "group_norm": lambda h: F.group_norm(h, 2),
    "addcmul": lambda h: torch.addcmul(h, h, h.sigmoid(), value=0.5),
    "addcdiv": lambda h: torch.addcdiv(h, h, h.abs() + 1, value=0.5),
    "glu": lambda h: F.glu(h),
    "chunks": lambda h: gated(*h.chunk(2, -1)),
    "split": lambda h: gated(*h.split([N // 2, N // 2], -1)),
    "unbound": lambda h: gated(*h.view(*h.shape[:-1], 2, N // 2).unbind(-2)),
    "every_other": lambda h: gated(h[..., ::2], h[..., 1::2]),
    "several": lambda h: (h, F.silu(h), F.rms_norm(h.float(), (N,)).sum(-1)),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_behind_one_gemm(name):
    check(lambda x, w: POINTWISE[name](x @ w.t()), half(M, K), half(N, K, scale=0.2))


def test_float16():
    check(layer_norm, *(x.to(torch.float16) for x in of_layer_norm(M)))


def test_parts_that_are_no_halves():
    """Of a packed projection for q, k and v."""

    def thirds(x, w):
        q, k, v = F.gelu(F.linear(x, w)).split([32, 16, 16], -1)
        return q * 2, k + 1, v

    check(thirds, half(2, 20, K), half(N, K, scale=0.2))


def layer_norm(x, w, bias, r, g, b):
    return F.layer_norm(F.linear(x, w, bias) + r, (N,), g, b)


def rms_norm(x, w, r, g):
    h = (F.linear(x, w) + r).float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
    return g * h.to(x.dtype)


def block(x, gate, up, down, r):
    return r + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def of_layer_norm(*rows: int) -> tuple[Tensor, ...]:
    return half(*rows, K), half(N, K, scale=0.2), half(N), half(*rows, N), half(N), half(N)


@pytest.mark.parametrize("rows", [(M,), (2, 20), (2, 3, 7), (1,), (1, 1)])
def test_norms_of_any_leading_sizes(rows):
    check(layer_norm, *of_layer_norm(*rows))
    log.clear()
    check(rms_norm, half(*rows, K), half(N, K, scale=0.2), half(*rows, N), half(N))


def test_a_gated_block():
    weights = half(N, K, scale=0.2), half(N, K, scale=0.2), half(K, N, scale=0.2)
    check(block, half(2, 20, K), *weights, half(2, 20, K), gemms=3)


def test_a_weight_that_is_not_transposed():
    check(lambda x, w, b: F.gelu(x @ w + b), half(2, 20, K), half(K, N, scale=0.2), half(N))


def test_a_mask_for_batches():
    def scores(q, k, mask):
        return F.softmax(q @ k.transpose(-1, -2) * 0.25 + mask, -1)

    check(scores, half(6, 40, 16), half(6, 32, 16), torch.where(torch.rand(40, 32) < 0.2, -1e4, 0.0))


def test_heads_are_split_behind_the_kernel():
    def heads(x, w, b):
        return (F.gelu(F.linear(x, w, b))).view(2, 20, 4, 16).transpose(1, 2)

    check(heads, half(2, 20, K), half(N, K, scale=0.2), half(N))


# --- symbolic rows --------------------------------------------------------------------------------------

ROWS = (53, 5, 2, 48, 1, 0)  # the first is no other size: equal sizes get one symbol


def test_one_graph_for_all_rows():
    weights = of_layer_norm(1)[1:]
    weights = (*weights[:2], *weights[3:])
    for weight in weights:
        torch._dynamo.mark_static(weight)

    def norm(x, r):
        return layer_norm(x, weights[0], weights[1], r, *weights[2:])

    def exact(x, r):
        w, bias, g, b = (weight.double() for weight in weights)
        return layer_norm(x.double(), w, bias, r.double(), g, b)

    with enable(force=True), torch.no_grad():
        run = compiled(norm, dynamic=True)
        for rows in ROWS:
            x, r = half(rows, K), half(rows, N)
            close([run(x, r)], [norm(x, r)], [exact(x, r)])
    # One graph for all that is symbolic, one for a single row, and one for none, where nothing is computed.
    assert fused() == [True, True, False], log.counts()


def test_batches_and_rows_marked_dynamic():
    with enable(force=True), torch.no_grad():
        run = compiled(layer_norm, dynamic=None)
        for rows in ((3, 7), (2, 5), (6, 24)):
            args = of_layer_norm(*rows)
            for x in (args[0], args[3]):
                torch._dynamo.mark_dynamic(x, 0)
                torch._dynamo.mark_dynamic(x, 1)
            close([run(*args)], [layer_norm(*args)], [layer_norm(*(x.double() for x in args))])
    assert fused() == [True], log.counts()


# --- gradients ------------------------------------------------------------------------------------------


def feed_forward(activation: Function, p: float = 0.0) -> Function:
    """The second half of a post-norm Transformer layer."""

    def run(x, up, bias, down, g, b):
        h = F.dropout(activation(F.linear(x, up, bias)), p)
        return F.layer_norm(x + F.dropout(F.linear(h, down), p), (K,), g, b)

    return run


def of_feed_forward(*rows: int) -> tuple[Tensor, ...]:
    return half(*rows, K), half(N, K, scale=0.2), half(N), half(K, N, scale=0.2), half(K), half(K)


@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "gelu_tanh", "tanh", "sigmoid"])
def test_gradients_of_a_feed_forward_layer(name):
    # Both forward GEMMs, and both gradients by what goes in; those by the weights have nothing behind them.
    check_gradients(feed_forward(POINTWISE[name]), *of_feed_forward(2, 20), gemms=4)


def test_gradients_of_stacked_layers():
    def run(x, *weights):
        layer = feed_forward(F.gelu)
        return layer(layer(x, *weights[:5]), *weights[5:])

    args = of_feed_forward(2, 20)
    check_gradients(run, *args, *of_feed_forward(1)[1:], gemms=8)


def test_gradients_of_a_gated_block():
    weights = half(N, K, scale=0.2), half(N, K, scale=0.2), half(K, N, scale=0.2)
    check_gradients(block, half(2, 20, K), *weights, half(2, 20, K), gemms=5)


def test_gradients_of_rms_norm():
    check_gradients(rms_norm, half(M, K), half(N, K, scale=0.2), half(M, N), half(N), gemms=1)


# --- dropout --------------------------------------------------------------------------------------------


def seeded(fn: Function) -> Function:
    """Draws the same masks at each call, through TorchInductor with ComFuse or without."""

    def run(*args):
        torch.manual_seed(7)
        return compiled(fn)(*args)

    return run


def test_gradients_with_dropout():
    fn, args = feed_forward(F.gelu, 0.2), of_feed_forward(2, 20)
    unfused = [gradients(seeded(fn), args, dtype) for dtype in (torch.bfloat16, torch.float64)]
    torch._dynamo.reset()
    with enable(force=True):
        found = gradients(seeded(fn), args, torch.bfloat16)
    assert sum(fused()) == 4, log.counts()
    close(found, *unfused)


# --- autocast -------------------------------------------------------------------------------------------


def test_autocast():
    fn, args = feed_forward(F.silu), [x.float() for x in of_feed_forward(2, 20)]

    def run(*args):
        with torch.autocast("cpu", torch.bfloat16):
            return fn(*args)

    with enable(force=True):
        found = gradients(compiled(run), args, torch.float32)
    assert sum(fused()) == 4, log.counts()
    close(found, gradients(run, args, torch.float32), gradients(fn, args, torch.float64))
