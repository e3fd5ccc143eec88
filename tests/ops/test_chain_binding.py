"""Chains through the C++ binding on host tensors: each link with its own columns."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import Tensor

from comfuse import fallbacks
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import DType
from comfuse.ops import checks, programs, schema
from tests.ops.chains import Arguments, K, arguments, every_operand
from tests.ops.emulated import emulate
from tests.ops.host_binding import Host

# A chain of its own for each test, since nothing is ever taken out of the table.
_SIZES = count(24, 8)


def call(host: Host, chain: ChainSpec, x: Arguments) -> Tensor:
    """A chain with an operand of each kind has more of them than the forms of fixed arity."""
    (y,) = torch.ops.comfuse_host.region(chain.text(), x.a, x.b, list(x.operands), list(x.scalars))
    return y


def close(y: Tensor, x: Arguments, gated: bool = False) -> bool:
    wanted = x.expected(gated)
    return y.shape == wanted.shape and bool((y.double() - wanted).norm() <= 4e-3 * wanted.norm())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("lead", [(5,), (2, 3), ()])
def test_arguments_reach_the_kernel(host: Host, gated: bool, lead: tuple[int, ...]) -> None:
    n = next(_SIZES)
    chain, x = every_operand(n, gated=gated), arguments(*lead, n=n, gated=gated)
    host.register(chain, run=emulate(chain))
    assert close(call(host, chain, x), x, gated)
    (launch,) = host.launched
    args, products = launch.args, 2 if gated else 1
    assert (args.m, args.k) == (torch.Size(lead).numel(), K)
    factors = [x.b, *x.operands[: products - 1], x.operands[products + 2]]
    assert [b.data for b in args.b[: products + 1]] == [b.data_ptr() for b in factors]
    operands = [t for t in x.operands if all(t is not b for b in factors)]
    assert [t.data for t in args.operands[:6]] == [t.data_ptr() for t in operands]
    assert tuple(args.scalars[:2]) == x.scalars
    assert host.copies == [0, 0, 0]


def test_one_without_operands(host: Host) -> None:
    n = next(_SIZES)
    chain = ChainSpec((catalog.linear(40, K, DType.BF16), catalog.linear(n, 40, DType.BF16)))
    host.register(chain, run=emulate(chain))
    x = arguments(6, n=n)
    w1 = x.operands[3]
    y = host.call(chain, x.a, x.b, (w1,))
    middle = (x.a.float() @ x.b.float().t()).bfloat16()
    torch.testing.assert_close(y, (middle.float() @ w1.float().t()).bfloat16(), rtol=1e-2, atol=1e-2)


def test_broadcast_tiles_of_both_widths(host: Host) -> None:
    n = next(_SIZES)
    chain, x = every_operand(n, strided=True), arguments(2, 3, n=n)
    host.register(chain, run=emulate(chain))
    parts = list(x.operands)
    parts[2], parts[6] = parts[2][:1], parts[6][:, :1]
    some = Arguments(x.a, x.b, tuple(parts))
    assert close(call(host, chain, some), some)
    assert host.copies == [0, 0, 0]


def test_what_cannot_be_read_in_place_is_copied(host: Host) -> None:
    n = next(_SIZES)
    chain, x = every_operand(n), arguments(6, n=n)
    host.register(chain, run=emulate(chain))
    turned = [t.t().contiguous().t() if t.ndim == 2 else t for t in (x.a, x.b, *x.operands)]
    assert close(call(host, chain, Arguments(turned[0], turned[1], tuple(turned[2:]))), x)
    assert host.copies == [1, 2, 2]


def test_outputs_of_the_caller(host: Host) -> None:
    n = next(_SIZES)
    chain, x = every_operand(n, outputs=2), arguments(6, n=n)
    host.register(chain, run=emulate(chain))
    y, total = torch.zeros(6, n).bfloat16(), torch.zeros(6)
    host.call_into(chain, x.a, x.b, x.operands, [y, total], x.scalars)
    assert close(y, x)
    torch.testing.assert_close(total, x.expected().sum(-1).float(), rtol=1e-2, atol=1e-1)
    with pytest.raises(RuntimeError, match=r"out\[0\] is in memory that w1 is in too"):
        host.call_into(
            chain, x.a, x.b, x.operands, [x.operands[3].flatten()[: 6 * n].view(6, n), total], x.scalars
        )


@pytest.mark.parametrize(
    "at, change, message",
    [
        (-2, lambda t: t[:, :-8], r"\[ShapeError\] a is of shape \(6, 24\); allowed: \(..., K\) with K = 32"),
        (-1, lambda t: t[:-1], r"\[ShapeError\] b is of shape \(39, 32\); allowed: \(40, 32\)"),
        (0, lambda t: t[:-1], r"\[ShapeError\] row0 is of shape \(39,\); allowed: \(40,\)"),
        (2, lambda t: t[:, :-1], r"\[ShapeError\] tile0 is of shape \(6, 39\); allowed: \(..., 40\)"),
        (3, lambda t: t.t(), r"\[ShapeError\] w1 is of shape \(40, \d+\); allowed: \(\d+, 40\)"),
        (3, lambda t: t.float(), r"\[DTypeError\] w1 is torch.float32; allowed: torch.bfloat16"),
        (4, lambda t: t[:-1], r"\[ShapeError\] row1 is of shape"),
        (6, lambda t: t[:-1], r"\[ShapeError\] tile1 is of shape"),
    ],
)
def test_both_checks_say_the_same(host: Host, at: int, change, message: str) -> None:  # type: ignore[no-untyped-def]
    n = next(_SIZES)
    chain, x = every_operand(n), arguments(6, n=n)
    host.register(chain)
    tensors = [*x.operands, x.a, x.b]
    tensors[at] = change(tensors[at])
    *operands, a, b = tensors
    with pytest.raises(RuntimeError, match=message) as in_cpp:
        torch.ops.comfuse_host.region(chain.text(), a, b, operands, list(x.scalars))
    with pytest.raises(ValueError) as in_python:
        checks.check(programs.parse(chain.text()), a, b, operands, x.scalars)
    assert str(in_python.value).removeprefix("region: ") in str(in_cpp.value)
    assert not host.launched


def test_counts(host: Host) -> None:
    n = next(_SIZES)
    chain, x = every_operand(n, gated=True), arguments(6, n=n, gated=True)
    host.register(chain)
    with pytest.raises(RuntimeError, match=r"operands is a list of 7; allowed: 8"):
        torch.ops.comfuse_host.region(chain.text(), x.a, x.b, list(x.operands[:-1]), list(x.scalars))
    with pytest.raises(RuntimeError, match=r"scalars is a list of 1; allowed: 2"):
        torch.ops.comfuse_host.region(chain.text(), x.a, x.b, list(x.operands), [0.5])


def test_no_kernel_runs_link_by_link(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each link is a region of its own, which may be a kernel."""
    ran = []

    def general(spec: str, *rest):  # type: ignore[no-untyped-def]
        ran.append(spec)
        return schema._evaluate(spec, *rest)

    monkeypatch.setattr(schema, "GENERAL", general)
    n = next(_SIZES)
    chain, x = every_operand(n, gated=True), arguments(6, n=n, gated=True)
    host.register(chain, min_rows=1000)
    assert close(call(host, chain, x), x, gated=True)
    assert not host.launched
    assert ran == [link.text() for link in chain.links]
    assert sum(fallbacks.counts().values()) == 1


def test_no_rows_launch_nothing(host: Host) -> None:
    n = next(_SIZES)
    chain, x = every_operand(n), arguments(0, n=n)
    host.register(chain)
    assert call(host, chain, x).shape == (0, n)
    assert not host.launched
