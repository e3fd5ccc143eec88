"""Programs that are hard to compile, in strict mode: right, whether fused or left with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse.inductor import log
from comfuse.inductor.entrances import enable
from tests.inductor.interpreted import interpreted

N, K, M = 64, 48, 40
# Torch rounds in between, and a kernel does not: a few steps of bfloat16, 2^-8 of numbers up to 10.
CLOSE = {"rtol": 2e-2, "atol": 6e-2}
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    torch.manual_seed(0)
    torch._dynamo.reset()
    log.clear()


def half(*shape: int) -> Tensor:
    return (0.5 * torch.randn(*shape)).to(torch.bfloat16)


def linear(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) + r


def check(fn: Function, *args: Tensor, fused: int, left: str = "", whole: bool = True) -> None:
    """Compares the results and what is left in the arguments with torch's own.

    Args:
        fused: how many GEMMs are.
        left: a part of the reason of each that is not.
        whole: the program is one graph.
    """
    own, others = ([x.detach().clone(memory_format=torch.preserve_format) for x in args] for _ in range(2))
    expected = fn(*own)
    with enable(force=True), torch.no_grad():
        found = torch.compile(fn, backend=interpreted, fullgraph=whole, dynamic=False)(*others)
    verdicts = log.verdicts()
    assert sum(v.fused for v in verdicts) == fused, log.counts()
    for verdict in verdicts:
        assert verdict.fused or left in verdict.reason, verdict
        assert verdict.reason
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(others, own, **CLOSE)


def test_a_graph_break():
    def broken(x, w, r):
        h = linear(x, w, r)
        torch._dynamo.graph_break()
        return linear(h, w.t().contiguous(), x)

    check(broken, half(M, K), half(N, K), half(M, N), fused=2, whole=False)


def test_an_input_changed_before_and_behind():
    def changed(x, w, r):
        x.mul_(2)
        y = linear(x, w, r)
        x.add_(1)
        return y

    check(changed, half(M, K), half(N, K), half(M, N), fused=1)


def test_an_operand_changed_behind():
    def changed(x, w, r):
        y = linear(x, w, r)
        r.copy_(y)
        return y * 2

    check(changed, half(M, K), half(N, K), half(M, N), fused=1)


def test_a_weight_changed_between_two_products():
    def changed(x, w, r):
        y = linear(x, w, r)
        w.mul_(0.5)
        return y, linear(x, w, r)

    args = half(M, K), half(N, K), half(M, N)
    check(changed, *args, fused=1, left="it reads what the graph changes in place")


def test_the_result_in_place():
    def in_place(x, w, r):
        y = F.linear(x, w)
        y.add_(r).relu_()
        y[:, ::2] *= 2
        return y

    check(in_place, half(M, K), half(N, K), half(M, N), fused=1)


def test_results_that_are_views_of_each_other_and_of_inputs():
    def views(x, w, r):
        y = linear(x, w, r)
        return y, y.view(5, 8, N), y.t(), y[3:], y, r.view(-1), y.view(-1, 4)[1]

    check(views, half(M, K), half(N, K), half(M, N), fused=1)


@pytest.mark.parametrize(
    "x",
    [
        half(M, 2 * K)[:, ::2],
        half(M, K + 1)[:, 1:],
        half(K, M).t(),
        half(2 * M, K)[::2],
        half(K).expand(M, K),
        half(4, K, 10).transpose(1, 2),
    ],
    ids=["columns", "unaligned", "transposed", "rows", "expanded", "batches"],
)
def test_strides_of_the_left_factor(x):
    check(linear, x, half(N, K), half(*x.shape[:-1], N), fused=1)


@pytest.mark.parametrize(
    "r",
    [half(M, N + 3)[:, :N], half(N, M).t(), half(N).expand(M, N), half(M, 1), half(1), half(1, N)],
    ids=["pitched", "transposed", "row", "column", "number", "kept"],
)
def test_strides_of_an_operand(r):
    check(linear, half(M, K), half(N, K), r, fused=1)


def test_one_row_and_column_sums_of_none():
    check(linear, half(1, K), half(N, K), half(1, N), fused=1)
    log.clear()
    check(lambda x, w: F.linear(x, w).sum(0), half(0, K), half(N, K), fused=0, left="no rows")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex64])
def test_other_dtypes(dtype):
    args = [torch.randn(*shape, dtype=dtype) for shape in ((M, K), (N, K), (M, N))]
    fn = linear if dtype.is_floating_point else lambda x, w, r: x @ w.t() + r
    check(fn, *args, fused=0, left=f"its factors are {dtype}")


def test_integers():
    args = torch.randint(-9, 9, (M, K)), torch.randint(-9, 9, (K, N))
    check(lambda x, w: (x @ w) * 2, *args, fused=0, left="its factors are torch.int64")


def test_channels_last():
    def convolved(x, kernel, w, r):
        h = F.conv2d(x, kernel, padding=1)
        return F.relu(F.linear(h.permute(0, 2, 3, 1), w)) + r

    image = half(2, 8, 6, 6).to(memory_format=torch.channels_last)
    check(convolved, image, half(K, 8, 3, 3), half(N, K), half(2, 6, 6, N), fused=1)


def test_branches():
    def either(x, w, r):
        return torch.cond(x.sum() > 0, linear, lambda x, w, r: linear(x, w, r) * 2, (x, w, r))

    x = half(M, K)
    check(either, x, half(N, K), half(M, N), fused=2)


def test_sizes_that_depend_on_data():
    def picked(x, w, r, mask):
        rows = mask.nonzero().squeeze(-1)
        return linear(x[rows], w, r[rows])

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(picked, half(M, K), half(N, K), half(M, N), torch.arange(M) % 3 == 0, fused=1)


def test_equal_products_and_results_twice():
    def twice(x, w, r):
        y, z = linear(x, w, r), linear(x, w, r)
        return y, z, y + z, y

    check(twice, half(M, K), half(N, K), half(M, N), fused=2)


def test_a_product_that_feeds_itself_by_two_ways():
    def diamond(x, w, v):
        h = F.linear(x, w)
        return torch.tanh(h) + F.linear(F.relu(h), v)

    check(diamond, half(M, K), half(K, K), half(K, K), fused=2)


def test_a_number_from_the_cpu():
    def scaled(x, w, s):
        return F.relu(F.linear(x, w)) * s

    check(scaled, half(M, K), half(N, K), torch.tensor(1.5), fused=1)
