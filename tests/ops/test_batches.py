"""How batches and two products reach a kernel, which is emulated."""

from __future__ import annotations

import pytest
from torch import Tensor

from comfuse.errors import ShapeError
from comfuse.generator.spec import Major, Space
from comfuse.ops import region
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


# --- batches in two levels: sequences and heads ---

LEADS = [(2, 3), (2, 1), (1, 3), (1, 1), (6, 1), (1, 6)]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize(
    "space, strided, matrix",
    [
        (Space.ROW, False, (1, 24)),
        (Space.COLUMN, False, (5, 1)),
        (Space.TILE, False, (5, 24)),
        (Space.TILE, True, (5, 24)),
        (Space.TILE, True, (1, 24)),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("expanded", [False, True])
def test_operands_in_two_levels_are_read_in_place(
    host: Host,
    lead: tuple[int, int],
    space: Space,
    strided: bool,
    matrix: tuple[int, int],
    turned: bool,
    expanded: bool,
) -> None:
    """What varies with either, both or neither; as it lies, or with the heads between the rows."""
    b = builder(batched=True)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", space, BF16, strided=strided)))
    t = random(lead[0], matrix[0], lead[1], matrix[1]).transpose(1, 2) if turned else random(*lead, *matrix)
    if expanded:
        t = t.expand(*_whole(lead), *matrix)
    launch(host, spec, random(6, 5, K), random(24, K), (t,))
    assert host.launched[0].args.operands[0].data == t.data_ptr()
    assert host.copies == [0, 0, 0]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("b_major", Major)
def test_a_weight_in_two_levels_is_read_in_place(
    host: Host, lead: tuple[int, int], turned: bool, b_major: Major
) -> None:
    """Keys of fewer heads than queries have, among them."""
    b = builder(batched=True, b_major=b_major)
    spec = finish(b, b.gemm())
    n, k = (24, K) if b_major is Major.K else (K, 24)
    t = random(lead[0], n, lead[1], k).transpose(1, 2) if turned else random(*lead, n, k)
    launch(host, spec, random(6, 5, K), t if b_major is Major.K else t.mT)
    assert host.launched[0].args.b[0].data == t.data_ptr()
    assert host.copies == [0, 0, 0]


def test_levels_are_one_where_one_stride_walks_them(host: Host) -> None:
    b = builder(batched=True)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, BF16)))
    launch(host, spec, random(6, 5, K), random(24, K), (random(2, 3, 5, 24),))
    t = host.launched[0].args.operands[0]
    assert (t.batch_stride, t.batch_period, t.batch_outer) == (5 * 24, 6, 0)


@pytest.mark.parametrize("lead", LEADS)
def test_levels_that_are_not_aligned_are_copied_once_each(host: Host, lead: tuple[int, int]) -> None:
    """What repeats is not copied again."""
    b = builder(batched=True)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, BF16)))
    wide = random(*lead, 5, 28)[..., 2:26]
    launch(host, spec, random(6, 5, K), random(24, K), (wide.expand(*_whole(lead), 5, 24),))
    assert host.copies == [0, 0, 1]
    t = host.launched[0].args.operands[0]
    steps = (t.batch_stride, t.batch_outer)
    assert max(steps) == (5 * 24 if max(lead) > 1 else 0)


def test_columns_apart_that_repeat_are_copied_once(host: Host) -> None:
    b = builder(batched=True)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, BF16, strided=True)))
    t = random(2, 1, 24, 5).mT.expand(2, 3, 5, 24)
    launch(host, spec, random(6, 5, K), random(24, K), (t,))
    assert host.copies == [0, 0, 1]
    got = host.launched[0].args.operands[0]
    assert (got.batch_stride, got.batch_period, got.batch_outer) == (0, 3, 5 * 24)


def _whole(lead: tuple[int, int]) -> tuple[int, int]:
    """Both sizes of 6 batches, of which some were left out."""
    outer = lead[0] if lead[0] > 1 else 6 // lead[1] if lead[1] > 1 else 2
    return outer, 6 // outer


@pytest.mark.parametrize("shape", [(4, 1, 5, 24), (2, 2, 5, 24), (0, 1, 5, 24), (2, 3, 1, 24), (2, 3, 5, 1)])
def test_levels_that_are_not_the_batches_are_refused(host: Host, shape: tuple[int, ...]) -> None:
    b = builder(batched=True)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, BF16)))
    host.register(spec)
    with pytest.raises(RuntimeError, match=r"\(outer, inner, M, 24\) with outer \* inner batches"):
        host.call(spec, random(6, 5, K), random(24, K), (random(*shape),))
    with pytest.raises(ShapeError, match=r"\(outer, inner, M, 24\) with outer \* inner batches"):
        region(spec.text(), random(6, 5, K), random(24, K), [random(*shape)])


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
