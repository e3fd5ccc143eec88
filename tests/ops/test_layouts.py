"""How tensors reach a kernel: every layout, broadcast and unaligned tiles, dtypes, outputs.

The kernel is emulated: it reads memory by the strides that it is given, so that a wrong stride is a wrong
result.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from comfuse import fallbacks, reference
from comfuse.generator.spec import DType, Major, Space
from tests.ops.emulated import emulate
from tests.ops.host_binding import Host
from tests.ops.launching import BF16, FP32, K, as_major, builder, finish, launch, random


@pytest.mark.parametrize("a_major", Major)
@pytest.mark.parametrize("b_major", Major)
@pytest.mark.parametrize("lead", [(8,), (2, 12)])
def test_all_four_layouts_are_read_in_place(
    host: Host, a_major: Major, b_major: Major, lead: tuple[int, ...]
) -> None:
    b = builder(a_major=a_major, b_major=b_major)
    spec = finish(b, b.gemm())
    launch(host, spec, as_major(random(*lead, K), a_major), as_major(random(24, K), b_major))
    assert host.copies == [0, 0, 0]
    args = host.launched[0].args
    assert args.a.stride == (K if a_major is Major.K else torch.Size(lead).numel())
    assert args.b[0].stride == (K if b_major is Major.K else 24)
    assert (args.batches, args.a.batch_stride, args.b[0].batch_stride) == (1, 0, 0)


@pytest.mark.parametrize("a_major", Major)
@pytest.mark.parametrize("b_major", Major)
def test_another_layout_is_copied(host: Host, a_major: Major, b_major: Major) -> None:
    b = builder(a_major=a_major, b_major=b_major)
    spec = finish(b, b.gemm())
    other = {Major.K: Major.MN, Major.MN: Major.K}
    launch(host, spec, as_major(random(8, K), other[a_major]), as_major(random(24, K), other[b_major]))
    assert host.copies == [1, 1, 0]


@pytest.mark.parametrize("m", [1, 3, 9])
def test_rows_along_m_are_padded_where_they_are_not_aligned(host: Host, m: int) -> None:
    b = builder(n=20, a_major=Major.MN, b_major=Major.MN)
    spec = finish(b, b.gemm())
    launch(host, spec, as_major(random(m, K), Major.MN), as_major(random(20, K), Major.MN))
    args = host.launched[0].args
    assert (args.a.stride, args.b[0].stride) == (-(-m // 8) * 8, 24)
    assert host.copies == [1, 1, 0]


def test_a_slice_along_m_is_read_in_place(host: Host) -> None:
    b = builder(a_major=Major.MN, b_major=Major.MN)
    spec = finish(b, b.gemm())
    a = random(K, 40).t()[8:24]
    launch(host, spec, a, random(K, 64).t()[16:40])
    args = host.launched[0].args
    assert (args.a.stride, args.b[0].stride, args.a.data) == (40, 64, a.data_ptr())
    assert host.copies == [0, 0, 0]


def test_leading_dimensions_that_one_stride_does_not_walk_along_m(host: Host) -> None:
    b = builder(a_major=Major.MN)
    spec = finish(b, b.gemm())
    launch(host, spec, random(2, K, 8).transpose(1, 2), random(24, K))
    assert host.copies == [1, 0, 0]


# --- tiles that are read without TMA ---


@pytest.mark.parametrize(
    "shape, levels",
    [
        ((2, 6, 24), (12, 24, 0)),
        ((6, 24), (6, 24, 0)),  # a position embedding
        ((1, 6, 24), (6, 24, 0)),
        ((2, 1, 24), (6, 0, 24)),  # a modulation
        ((24,), (12, 0, 0)),
        ((1, 1, 24), (12, 0, 0)),
        ((12, 24), (12, 24, 0)),  # flattened
    ],
)
def test_broadcast_tiles(host: Host, shape: tuple[int, ...], levels: tuple[int, int, int]) -> None:
    b = builder()
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, BF16, strided=True)))
    launch(host, spec, random(2, 6, K), random(24, K), (random(*shape),))
    tile = host.launched[0].args.operands[0]
    assert (tile.row_period, tile.stride, tile.row_outer) == levels
    assert host.copies == [0, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), id="two levels"),
        pytest.param(lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2], id="no alignment"),
        pytest.param(lambda t: t[:1].expand(2, 6, 24), id="expanded outside"),
        pytest.param(lambda t: t[:, :1].expand(2, 6, 24), id="expanded inside"),
        pytest.param(lambda t: t.repeat(2, 2, 1)[::2, ::2], id="steps"),
    ],
)
def test_tiles_in_two_levels_are_read_in_place(host: Host, make: Callable[[Tensor], Tensor]) -> None:
    b = builder()
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, FP32, strided=True)))
    t = make(random(2, 6, 24, dtype=FP32))
    launch(host, spec, random(2, 6, K), random(24, K), (t,))
    assert host.launched[0].args.operands[0].data == t.data_ptr()
    assert host.copies == [0, 0, 0]


@pytest.mark.parametrize(
    "shape, make, rows",
    [
        pytest.param((2, 3, 4, 24), lambda t: t[:, :1].expand(2, 3, 4, 24), 24, id="three levels"),
        pytest.param((2, 1, 4, 24), lambda t: t, 24, id="broadcast between"),
        pytest.param((4, 24), lambda t: t.t().contiguous().t(), 4, id="columns apart, broadcast"),
        pytest.param((2, 3, 4, 24), lambda t: t.mT.contiguous().mT, 24, id="columns apart"),
        pytest.param((2, 3, 4, 1), lambda t: t, 24, id="one column"),
    ],
)
def test_other_tiles_are_copied(
    host: Host, shape: tuple[int, ...], make: Callable[[Tensor], Tensor], rows: int
) -> None:
    b = builder()
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, BF16, strided=True)))
    launch(host, spec, random(2, 3, 4, K), random(24, K), (make(random(*shape)),))
    assert host.copies == [0, 0, 1]
    assert host.launched[0].args.operands[0].row_period == rows


@pytest.mark.parametrize("n", [1, 5, 20, 23])
@pytest.mark.parametrize("batched", [False, True])
def test_columns_that_are_no_multiple_of_eight(host: Host, n: int, batched: bool) -> None:
    b = builder(n, batched=batched)
    y = b.op("add", b.gemm(), b.load("t", Space.TILE, BF16))
    b.output("z", y, BF16)
    spec = finish(b, y)
    launch(host, spec, random(2, 6, K), random(n, K), (random(2, 6, n),))
    assert host.copies == [0, 0, 0]
    tile, output = host.launched[0].args.operands[0], host.launched[0].args.outputs[0]
    assert (tile.stride, output.stride, output.column_stride) == (n, n, 1)
    assert tile.row_period > 0


def test_without_tma_the_columns_must_still_be_contiguous(host: Host) -> None:
    b = builder(20)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, BF16)))
    launch(host, spec, random(6, K), random(20, K), (random(20, 6).t(),))
    assert host.copies == [0, 0, 1]


def test_tiles_of_bytes(host: Host) -> None:
    """Rows of 24 bytes are read without TMA; rows of 32 by TMA, which needs them aligned."""
    for n, stride, copied in ((24, 25, 0), (32, 33, 1), (32, 48, 0)):
        b = builder(n)
        spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, DType.INT8)))
        t = random(6, stride, dtype=DType.INT8)[:, :n]
        host.launched.clear()
        host.library.comfuse_reset_copies()
        launch(host, spec, random(6, K), random(n, K), (t,))
        assert host.launched[0].args.operands[0].stride == (32 if copied else stride)
        assert host.copies == [0, 0, copied]


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("space", [Space.ROW, Space.COLUMN, Space.TILE])
def test_every_dtype_of_an_operand(host: Host, dtype: DType, space: Space) -> None:
    b = builder(32)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", space, dtype)))
    shape = {Space.ROW: (32,), Space.COLUMN: (6, 1), Space.TILE: (6, 32)}[space]
    launch(host, spec, random(6, K), random(32, K), (random(*shape, dtype=dtype),))
    assert host.copies == [0, 0, 0]


@pytest.mark.parametrize("dtype", DType)
def test_every_dtype_of_an_output(host: Host, dtype: DType) -> None:
    b = builder(24)
    y = b.gemm()
    b.output("rows", b.op("row_sum", y), dtype)
    spec = finish(b, y, dtype)
    launch(host, spec, random(6, K), random(24, K))


# --- outputs of every space ---


@pytest.mark.parametrize("lead", [(6,), (2, 6), (2, 3, 4), ()])
def test_outputs_of_every_space(host: Host, lead: tuple[int, ...]) -> None:
    b = builder(64, group=32)
    y = b.gemm()
    for op in ("row_max", "group_sum", "col_sum", "full_sum"):
        b.output(op, b.op(op, y), FP32)
    spec = finish(b, y)
    host.register(spec, run=emulate(spec))
    a, weight = random(*lead, K), random(64, K)
    results = torch.ops.comfuse_host.region(spec.text(), a, weight, [], [])
    for got, wanted in zip(results, reference.evaluate(spec, a, weight), strict=True):
        torch.testing.assert_close(got, wanted)
    assert [tuple(t.shape) for t in results] == [lead, (*lead, 2), (64,), (), (*lead, 64)]
    assert results[1].is_contiguous()


@pytest.mark.parametrize("lead", [(6,), (2, 6), (2, 3, 4)])
def test_heads(host: Host, lead: tuple[int, ...]) -> None:
    b = builder(24)
    spec = finish(b, b.gemm(), heads=8)
    launch(host, spec, random(*lead, K), random(24, K))
    output = host.launched[0].args.outputs[0]
    sequence = lead[-1]
    assert (output.stride, output.column_stride, output.column_period) == (8, 1, 8)
    assert output.column_outer == sequence * 8
    if len(lead) > 1:
        assert (output.row_period, output.row_outer) == (sequence, sequence * 24)


def test_heads_of_batches(host: Host) -> None:
    b = builder(24, batched=True)
    spec = finish(b, b.gemm(), heads=8)
    launch(host, spec, random(2, 6, K), random(24, K))
    assert host.launched[0].args.outputs[0].batch_stride == 6 * 24


def test_heads_of_one_row_each(host: Host) -> None:
    b = builder(24)
    spec = finish(b, b.gemm(), heads=8)
    launch(host, spec, random(5, 1, K), random(24, K))


def test_heads_need_a_sequence(host: Host) -> None:
    b = builder(24)
    spec = finish(b, b.gemm(), heads=8)
    host.register(spec)
    with pytest.raises(RuntimeError, match=r"a is of shape \(16,\); allowed: \(\.\.\., S, K\) with K = 16"):
        host.call(spec, random(K), random(24, K))


def test_no_rows_still_have_sums(host: Host) -> None:
    b = builder(24)
    y = b.gemm()
    b.output("sums", b.op("col_sum", y), FP32)
    b.output("largest", b.op("full_max", y), FP32)
    spec = finish(b, y)
    host.register(spec)
    sums, largest, tile = torch.ops.comfuse_host.region(spec.text(), random(0, K), random(24, K), [], [])
    assert torch.equal(sums, torch.zeros(24))
    assert largest == -torch.inf
    assert tile.shape == (0, 24)
    assert not host.launched
    assert not fallbacks.counts()


def test_strides_beyond_32_bits(host: Host) -> None:
    far = 2**31 + 32
    memory = torch.empty(far + 24, dtype=torch.int8)  # of which two rows are touched
    tile = memory.as_strided((2, 24), (far, 1)).copy_(random(2, 24, dtype=DType.INT8))
    b = builder(24)
    spec = finish(b, b.op("add", b.gemm(), b.load("t", Space.TILE, DType.INT8, strided=True)))
    launch(host, spec, random(2, K), random(24, K), (tile,))
    assert host.launched[0].args.operands[0].stride == far
    assert host.copies == [0, 0, 0]
