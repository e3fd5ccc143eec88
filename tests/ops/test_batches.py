"""How batches and two products reach a kernel, which is emulated."""

from __future__ import annotations

import pytest
from torch import Tensor

from comfuse.generator.spec import Major, Space
from tests.ops.host_binding import Host
from tests.ops.launching import BF16, K, as_major, builder, finish, launch, random


@pytest.mark.parametrize("a_major", Major)
@pytest.mark.parametrize("b_major", Major)
@pytest.mark.parametrize("shared", [False, True])
def test_batches(host: Host, a_major: Major, b_major: Major, shared: bool) -> None:
    b = builder(batched=True, a_major=a_major, b_major=b_major)
    spec = finish(b, b.gemm())

    def laid(t: Tensor, major: Major) -> Tensor:
        return t if major is Major.K else t.transpose(-1, -2).contiguous().transpose(-1, -2)

    weight = random(24, K) if shared else random(3, 24, K)
    launch(host, spec, laid(random(3, 8, K), a_major), laid(weight, b_major))
    args = host.launched[0].args
    assert (args.m, args.batches) == (8, 3)
    assert (args.a.batch_stride, args.b[0].batch_stride) == (8 * K, 0 if shared else 24 * K)
    assert args.outputs[0].batch_stride == 8 * 24
    assert host.copies == [0, 0, 0]


def test_batches_in_any_order_of_strides(host: Host) -> None:
    """(batch, M, K) as attention has it: heads between the rows."""
    b = builder(batched=True)
    spec = finish(b, b.gemm())
    launch(host, spec, random(5, 3, K).transpose(0, 1), random(24, 3, K).transpose(0, 1))
    args = host.launched[0].args
    assert (args.a.stride, args.a.batch_stride) == (3 * K, K)
    assert host.copies == [0, 0, 0]


def test_a_repeated_batch_is_shared(host: Host) -> None:
    b = builder(batched=True)
    spec = finish(b, b.gemm())
    launch(host, spec, random(1, 5, K).expand(3, 5, K), random(24, K))
    assert host.launched[0].args.a.batch_stride == 0
    assert host.copies == [0, 0, 0]


def test_batches_that_are_not_aligned_are_copied(host: Host) -> None:
    b = builder(batched=True)
    spec = finish(b, b.gemm())
    flat = random(3 * (5 * K + 4))
    a = flat.as_strided((3, 5, K), (5 * K + 4, K, 1))
    launch(host, spec, a, random(24, K))
    assert host.copies == [1, 0, 0]


ROWS = [(24,), (1, 24), (3, 24), (1, 1, 24), (3, 1, 24)]
COLUMNS = [(5,), (5, 1), (3, 5), (1, 5), (3, 5, 1), (1, 5, 1)]
TILES = [(5, 24), (1, 5, 24), (3, 5, 24)]
BROADCAST = [*TILES, (24,), (1, 24), (1, 1, 24), (3, 1, 24), (5, 1), (1,), ()]


@pytest.mark.parametrize(
    "space, strided, shape",
    [
        *[(Space.ROW, False, shape) for shape in ROWS],
        *[(Space.COLUMN, False, shape) for shape in COLUMNS],
        *[(Space.TILE, False, shape) for shape in TILES],
        *[(Space.TILE, True, shape) for shape in BROADCAST],
    ],
)
def test_operands_of_batches(host: Host, space: Space, strided: bool, shape: tuple[int, ...]) -> None:
    b = builder(batched=True)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", space, BF16, strided=strided)))
    launch(host, spec, random(3, 5, K), random(24, K), (random(*shape),))
    has_batches = len(shape) > 0 and shape[0] == 3 and not (space is Space.ROW and shape == (3,))
    assert (host.launched[0].args.operands[0].batch_stride != 0) == has_batches
    copied = strided and shape in [(5, 1), (1,), ()]  # columns that are repeated
    assert host.copies == [0, 0, int(copied)]


def test_one_batch(host: Host) -> None:
    b = builder(batched=True)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, BF16)))
    launch(host, spec, random(1, 5, K), random(1, 24, K), (random(1, 5, 24),))


def test_batches_choose_kernels_by_their_row_blocks(host: Host) -> None:
    b = builder(batched=True)
    spec = finish(b, b.gemm())
    few = host.register(spec, max_rows=256)
    many = host.register(spec, min_rows=257)
    for batches, name in ((1, few), (2, few), (3, many)):
        host.launched.clear()
        host.call(spec, random(batches, 5, K), random(24, K))
        assert host.launched[0].name == name


# --- two products ---


@pytest.mark.parametrize("b_major", Major)
@pytest.mark.parametrize("batched", [False, True])
def test_two_products(host: Host, b_major: Major, batched: bool) -> None:
    b = builder(products=2, b_major=b_major, batched=batched)
    y = b.op("mul", b.op("silu", b.gemm(0)), b.gemm(1))
    spec = finish(b, b.op("add", y, b.load("bias", Space.ROW, BF16)))
    a = random(3, 5, K) if batched else random(5, K)
    gate, up = (as_major(random(24, K), b_major) for _ in range(2))
    launch(host, spec, a, gate, (up, random(24)))
    args = host.launched[0].args
    assert (args.b[0].data, args.b[1].data) == (gate.data_ptr(), up.data_ptr())
    assert host.copies == [0, 0, 0]


def test_the_halves_of_one_weight_are_read_in_place(host: Host) -> None:
    weight = random(48, K)
    for gate, up in ((weight[:24], weight[24:]), (weight[::2], weight[1::2])):
        b = builder(products=2)
        spec = finish(b, b.op("mul", b.gemm(0), b.gemm(1)))
        host.launched.clear()
        launch(host, spec, random(5, K), gate, (up,))
    assert host.copies == [0, 0, 0]
    assert host.launched[0].args.b[1].stride == 2 * K
