"""Integers, which a kernel has in float32: what is computed with them as torch does, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import fuse, trace
from comfuse.frontend import TraceError
from tests.frontend.support import LEAD, N, check, weight, x

INT32, INT64 = torch.int32, torch.int64
EXACT = 2**24


def of_row(values: list[int], dtype: torch.dtype = INT64) -> Tensor:
    """(N,), of which most are zero."""
    return torch.tensor(values + [0] * (N - len(values)), dtype=dtype)


def times(of_integers: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A product times what is computed of integers."""

    def program(x: Tensor, w: Tensor, i: Tensor) -> Tensor:
        return F.linear(x, w) * of_integers(i)

    return program


LARGE = of_row([EXACT - 1, EXACT, EXACT + 1, 2**30, -(2**30), 2**62, -(2**62), 5])
TAKEN: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "compared with a number": (lambda i: (i >= EXACT - 1) | (i == 5) | (i < 1 - EXACT), LARGE),
    "compared with positions": (lambda i: torch.arange(N) <= i, LARGE),
    "compared with bools": (lambda i: i > (i != 5), LARGE),
    "compared with floats": (lambda i: i > 1.5, LARGE),
    "whether it is not zero": (lambda i: i.bool() | ~(i == 0), LARGE),
    "sign": (lambda i: torch.sign(i), LARGE),
    "clamped": (lambda i: i.clamp(-5, 1000) * 3 - 7, LARGE),
    "clamped by halves": (lambda i: i.clamp(min=-9).clamp_max(9).abs().square(), LARGE),
    "clamped as floats": (lambda i: i.float().clamp(-127.5, 127).round().to(INT32) + 1, LARGE),
    "chosen": (lambda i: torch.where(i > 3, 4, 5) * 7, LARGE),
    "extremes": (lambda i: i.maximum(i.new_full((), -4)).minimum(i.new_full((), 9)) // 2, LARGE),
    "filled": (lambda i: i.relu().clamp(max=8).masked_fill(i > 6, 11).pow(3), LARGE),
    "one byte": (lambda i: i.int() - 2 * i.short() + 300, of_row([-128, 127], torch.int8)),
    "bytes": (lambda i: i.int() * 250 - 7 * i.long(), of_row([255, 3], torch.uint8)),
    "bytes that stay bytes": (lambda i: i.clamp(max=5) * 50, of_row([255, 3], torch.uint8)),
    "bools": (lambda i: (i > 3).int() * 100 + (i < 3), LARGE),
    "positions": (lambda i: (torch.arange(3, 3 + 2 * N, 2) * 7 - 1) % 5 + torch.arange(N) // 3, LARGE),
    "narrowed": (lambda i: i.clamp(0, 255).to(torch.uint8), LARGE),
    "true quotients": (lambda i: i / 4 + i.clamp(-9, 9) / 7, LARGE),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_what_stays_exact_is_taken(name: str) -> None:
    of_integers, i = TAKEN[name]
    check(times(of_integers), x(), weight(), i)
    found = fuse(times(of_integers))(x(), weight(), i)  # in float32
    exact = times(of_integers)(x().double(), weight().double(), i)
    torch.testing.assert_close(found.double(), exact, rtol=2.0**-8, atol=0)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, str, str]] = {
    "one more": (lambda i: (i + 1) - i, LARGE, "add", r"i may lie from -2\^63 to 2\^63 - 1"),
    "square": (lambda i: i * i, of_row([2**20], INT32), "mul", r"i may lie from -2\^31 to 2\^31 - 1"),
    "sum of both": (lambda i: i + i, of_row([200], torch.uint8), "add", "its result may lie from 0 to 510"),
    "wraps below": (lambda i: i - 1, of_row([0], torch.uint8), "sub", "only from 0 to 255, and its"),
    "negated": (lambda i: -i, of_row([-128], torch.int8), "neg", "only from -128 to 127, and its"),
    "magnitude": (lambda i: i.abs(), of_row([-128], torch.int8), "abs_1", "may lie from 0 to 128"),
    "a product beyond": (lambda i: i.clamp(0, 5000) * 5000, LARGE, "mul", "may lie from 0 to 25000000"),
    "clamped too little": (lambda i: i.clamp(max=9) * 2, LARGE, "mul", r"clamp may lie from -2\^63 to 9"),
    "quotient": (lambda i: i // 3, LARGE, "floor_divide", r"only from -2\^20 to 2\^20, and i may lie from"),
    "remainder": (lambda i: i % 3, LARGE, "remainder", "i may lie from"),
    "power": (lambda i: i.clamp(0, 2) ** 5, LARGE, "pow_1", "its result may lie from -inf to inf"),
    "equal to one number": (lambda i: i == EXACT, LARGE, "eq", r"only from -2\^24 to 2\^24, and i may"),
    "compared with its like": (lambda i: i > i.clamp(min=3), of_row([1], INT32), "gt", "i may lie from"),
    "of a float": (lambda i: i.float().long() * 2, LARGE, "mul", r"_to_copy_1 may lie from -2\^63 to"),
    "cut off": (lambda i: i.to(torch.uint8), LARGE, "_to_copy", "may not fit torch.uint8, where torch wraps"),
    "narrowed": (lambda i: i.to(INT32), LARGE, "_to_copy", "may not fit torch.int32"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_be_exact_is_refused(name: str) -> None:
    of_integers, i, node, reason = REFUSED[name]
    with pytest.raises(TraceError, match=reason) as caught:
        trace(times(of_integers), x(), weight(), i)
    assert caught.value.node == node


TILES = torch.randint(-9, 9, (*LEAD, N))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8])
def test_sums_of_a_row_of_bytes(dtype: torch.dtype) -> None:
    check(lambda x, w, t: F.linear(x, w).amax(-1) + t.sum(-1) * 2, x(), weight(), TILES.to(dtype))


@pytest.mark.parametrize(
    "program, dtype, node",
    [
        (lambda h, t: h.amax(-1) + t.sum(-1), INT64, "sum_1"),
        (lambda h, t: h.amax(-1) + t.prod(-1), torch.int8, "prod"),
        (lambda h, t: h.amax((0, 1)) + (t + (h > 0)).sum((0, 1)), INT32, "add"),
        (lambda h, t: ((h > 0).int() * 3).sum(), torch.bool, "sum_1"),
        (lambda h, t: h.amax(-1) + torch.where(h > 0, t, 0).argmax(-1), INT64, "argmax"),
        (lambda h, t: h.amax(-1) + torch.where(h > 0, t, 0).max(-1).indices, INT64, "max_1"),
    ],
)
def test_reductions_that_may_not_be_exact_are_refused(program: Any, dtype: torch.dtype, node: str) -> None:
    with pytest.raises(TraceError, match="works on integers") as caught:
        trace(lambda x, w, t: program(F.linear(x, w), t), x(), weight(), TILES.to(dtype))
    assert caught.value.node == node


def test_indices_of_extremes_and_counts_are_known() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.linear(x, w)
        return h.argmax(-1) * 5 + 1, h.max(-1).indices * 2, (h > 0).sum(-1) * 3 + torch.count_nonzero(h, -1)

    check(program, x(), weight())
