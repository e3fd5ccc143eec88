"""What a function may ask of its number of rows, and for which numbers one trace is used then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from comfuse.errors import ShapeError
from comfuse.frontend import fuse, shapes, trace_region
from tests.frontend.support import K, N, residual, row, tensor, weight, x


def scaled(decide: Callable[[Any], bool]) -> Callable[..., Any]:
    """Twice or three times the product, as the number of rows decides."""
    return lambda x, w: F.linear(x, w) * (2 if decide(x.shape[0]) else 3)


def normed(x, w):
    return F.layer_norm(F.linear(x, w), (N,), eps=1e-5 if x.shape[0] > 1 else 10.0)


def squeezed(x, w):
    return F.linear(x, w).squeeze().softmax(0).view(-1, N)


def of_one_token(x, w):
    return F.linear(x, w) * (2 if x.shape[1] == 1 else 3)


def of_few_tokens_in_many(x, w):
    few = x.shape[1] == 1 and x.shape[0] > 100
    return F.linear(x, w) * (2 if few else 3)


def check(fused: Callable[..., Any], fn: Callable[..., Any], *lead: int) -> None:
    given = (x(*lead), weight())
    exact = fn(*(t.double() for t in given))
    found = fused(*given)
    assert found.shape == exact.shape
    torch.testing.assert_close(found.double(), exact, rtol=8e-3, atol=8e-3)


@pytest.mark.parametrize(
    "fn, leads, traces",
    [
        (scaled(lambda m: m == 1), [(8,), (1,), (0,), (9,)], 2),
        (scaled(lambda m: m == 0), [(8,), (0,), (1,)], 2),
        (scaled(lambda m: m > 100), [(101,), (99,), (1000,), (2,), (1,), (0,)], 2),
        (scaled(lambda m: m >= 5000), [(48,), (6000,), (5000,), (4999,)], 2),
        (scaled(lambda m: m % 8 == 0), [(48,), (4000,), (49,), (51,), (8,), (1,), (0,)], 2),
        (scaled(lambda m: m == 48), [(48,), (47,), (48,), (49,), (1048,)], 2),
        (scaled(lambda m: m in (6, 48)), [(48,), (47,), (6,), (49,)], 3),
        (scaled(lambda m: bool(m // 5000)), [(48,), (6000,)], 2),
        (scaled(lambda m: range(m)[-1] == 47), [(48,), (47,)], 2),
        (squeezed, [(8,), (1,), (7,), (1000,)], 2),
        (squeezed, [(1,), (8,)], 2),
        (scaled(lambda m: {"99": True, "101": True}.get(f"{m}", False)), [(48,), (99,), (101,), (98,)], 4),
        (scaled(lambda m: len(str((m, m))) == 8), [(48,), (99,), (101,), (98,)], 4),
        (normed, [(8,), (1,), (0,), (7,)], 3),
        (of_one_token, [(4, 8), (4, 1), (5, 1), (1, 1), (3, 7), (1, 8)], 2),
        (of_few_tokens_in_many, [(4, 8), (4, 1), (200, 1), (300, 2), (99, 1), (201, 1)], 2),
    ],
)  # fmt: skip
def test_what_a_function_decides_by_its_number_of_rows(fn, leads, traces):
    fused = fuse(fn)
    for lead in (*leads, *leads[::-1]):
        check(fused, fn, *lead)
    assert len(fused.regions) == traces


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: F.linear(x, w) * (x.shape[0] % 8),
        lambda x, w: F.linear(x, w) * (x.shape[0] // 5000),
        lambda x, w: F.linear(x, w) + x.shape[0] ** 0.5,
        lambda x, w: F.linear(x, w) * float(x.shape[0]),
        lambda x, w: F.linear(x, w) + torch.full((N,), x.shape[0] % 4, dtype=x.dtype),
        lambda x, w: F.linear(x, w) + torch.arange(x.shape[0] % 8, x.shape[0] % 8 + N),
    ],
)  # fmt: skip
def test_what_is_computed_of_the_number_of_rows_is_for_that_number_alone(fn):
    fused = fuse(fn)
    for rows in (48, 4000, 49, 48):
        check(fused, fn, rows)
    assert [region.any_rows for region in fused.regions] == [False] * 3


@pytest.mark.parametrize(
    "fn, arguments",
    [
        (lambda x, w: F.linear(x.view(-1, K), w).view(x.shape[0], x.shape[1], N), ()),
        (lambda x, w: F.linear(x, w).reshape(x.shape[0] * x.shape[1], -1), ()),
        (lambda x, w: F.linear(x, w).flatten(0, 1).unflatten(0, x.shape[:2]), ()),
        (lambda x, w, b: F.linear(x, w, b).view(*x.shape[:-1], 2, -1).transpose(1, 2).contiguous(), (row(),)),
        (lambda x, w, p: F.linear(x, w) + p, (tensor(1, 3, N),)),
        (lambda x, w: F.linear(x, w).mean((0, 1)), ()),
        (lambda x, w: F.linear(x, w) + torch.zeros(x.shape[0], x.shape[1], N), ()),
        (lambda x, w: F.linear(x, w) if x.shape[0] > 0 and x.dim() == 3 else x, ()),
    ],
)  # fmt: skip
def test_rows_that_are_only_counted_are_of_any_number(fn, arguments):
    region = trace_region(fn, (x(2, 3), weight(), *arguments))
    assert region.any_rows
    assert region.symbolic.conditions == ()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: F.linear(x, w) + torch.arange(x.shape[0])[:, None] % 7,
        lambda x, w: F.linear(x, w) + torch.arange(2, x.shape[0] + 2)[:, None],
        lambda x, w: F.linear(x, w).masked_fill(torch.arange(x.shape[0])[:, None] < torch.arange(N), 0.0),
    ],
)
def test_positions_of_rows_are_of_any_number(fn):
    fused = fuse(fn)
    for rows in (9, 30, 1, 0, 2):
        check(fused, fn, rows)
    assert len(fused.regions) == 1


def test_a_region_refuses_rows_that_the_function_decides_otherwise_for():
    region = trace_region(scaled(lambda m: m > 100), (x(101), weight()))
    assert region.accepts((x(200), weight()))
    assert not region.accepts((x(99), weight()))
    with pytest.raises(ShapeError, match=r"x is of shape \(99, 8\).*decides"):
        region.bind((x(99), weight()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("operator", shapes.RULES, ids=str)
def test_shapes_of_operators_with_a_rule_are_those_of_torch(operator, dtype):
    x = torch.empty(5, N, dtype=dtype)
    target, weight = torch.zeros(5, dtype=torch.long), torch.empty(N, dtype=dtype)
    arguments = {
        "addmm": [(weight, x, torch.empty(N, N, dtype=dtype))],
        "gelu": [(x,), (x.t(),)],
        "gelu_backward": [(x, x), (x.t(), x.t())],
        "_log_softmax": [(x, 1, False), (x, 0, False)],
        "native_layer_norm": [(x, [N], weight, weight, 1e-5), (x, [5, N], None, None, 1e-5)],
        "nll_loss_forward": [(x, target, None, reduction, -100) for reduction in (0, 1, 2)],
    }[operator.overloadpacket.__name__]
    for given in arguments:
        fake = FakeTensorMode()
        with fake:
            expected = operator(*(fake.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in given))
        found = shapes.RULES[operator](*given)
        for y, z in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
            assert (y.shape, y.stride(), y.dtype) == (z.shape, z.stride(), z.dtype)


def test_many_single_rows_are_compared_one_by_one():
    """What holds for (4, 1) need not hold for (200, 1)."""
    fused = fuse(of_few_tokens_in_many)
    for batch in (4, 200, 5, 300):
        check(fused, of_few_tokens_in_many, batch, 1)


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_no_trace_more_for_rows_that_are_not_asked_for(rows):
    def program(x, w, b, residual):
        return F.layer_norm(F.linear(x, w, b) + residual, (N,))

    fused = fuse(program)
    for m in (6, rows, 6):
        assert fused(x(m), weight(), row(), residual(m)).shape == (m, N)
    assert len(fused.regions) == 1
