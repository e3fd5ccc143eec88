"""Strided tiles, compiled for the host: every access of every thread of a kernel's tiles, against numpy."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from comfuse.library import abi
from tests.functors.host import compile_for_host

STUBS = Path(__file__).parent / "stubs"
TYPES = {1: np.int8, 2: np.uint16, 4: np.float32, 8: np.int64}
WIDTHS = (64, 104, 77)
FAR = 1 << 40


@dataclass(frozen=True)
class Levels:
    """Row or column i lies at ``i // period * outer + i % period * inner``."""

    inner: int
    period: int = FAR
    outer: int = 0

    def offsets(self, count: int) -> np.ndarray:
        i = np.arange(count)
        return i // self.period * self.outer + i % self.period * self.inner


@dataclass
class Tensor:
    """A tensor somewhere within a buffer, whose other bytes nobody may touch."""

    itemsize: int
    batches: int
    batch_stride: int
    rows: Levels
    columns: Levels
    m: int
    n: int
    start: int = 0  # elements from an address that is a multiple of 16 bytes
    batch_period: int = FAR
    batch_outer: int = 0
    buffer: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = (
            self.start
            + Levels(self.batch_stride, self.batch_period, self.batch_outer).offsets(self.batches)[
                :, None, None
            ]
            + self.rows.offsets(self.m)[None, :, None]
            + self.columns.offsets(self.n)[None, None, :]
        )
        size = int(self.offsets.max()) + 17
        space = np.zeros(size * self.itemsize + 16, np.uint8)
        aligned = -space.ctypes.data % 16
        dtype = np.int16 if self.itemsize == 2 else TYPES[self.itemsize]
        self.buffer = space[aligned : aligned + size * self.itemsize].view(dtype)

    def mask(self) -> np.ndarray:
        touched = np.zeros((self.buffer.size, self.itemsize), np.uint8)
        touched[self.offsets.ravel()] = 1
        return touched.ravel()

    def abi(self) -> abi.Tensor:
        return abi.Tensor(
            data=self.buffer.ctypes.data + self.start * self.itemsize,
            stride=self.rows.inner,
            batch_stride=self.batch_stride,
            batch_period=self.batch_period,
            batch_outer=self.batch_outer,
            row_period=self.rows.period,
            row_outer=self.rows.outer,
            column_stride=self.columns.inner,
            column_period=self.columns.period,
            column_outer=self.columns.outer,
        )

    def values(self) -> np.ndarray:
        return self.buffer[self.offsets]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_host(tmp_path_factory.mktemp("strided"), (STUBS / "strided.cpp").read_text(), STUBS)


def watch(host: ctypes.CDLL, operand: Tensor, out: Tensor) -> list[np.ndarray]:
    masks = [operand.mask(), out.mask()]
    arguments: list[ctypes.c_void_p | ctypes.c_long] = []
    for tensor, mask in zip((operand, out), masks, strict=True):
        data, allowed = ctypes.c_void_p(tensor.buffer.ctypes.data), ctypes.c_void_p(mask.ctypes.data)
        arguments += [data, allowed, ctypes.c_long(mask.size)]
    host.watch(*arguments)
    return masks


def counts(host: ctypes.CDLL) -> tuple[int, int, int]:
    """Faults, accesses to runs of eight, accesses to single elements."""
    result = (ctypes.c_long * 3)()
    host.counts(result)
    return result[0], result[1], result[2]


def copy(host: ctypes.CDLL, operand: Tensor, out: Tensor) -> tuple[int, int, int]:
    """Copies with the device's code and compares; the counts of accesses."""
    rng = np.random.default_rng(0)
    # bf16 from whole numbers below 128 to numbers of that many bits: any pattern is copied as it is.
    operand.buffer[:] = rng.integers(1, 100, operand.buffer.size)
    if operand.itemsize == 2:
        operand.buffer[:] += 0x4000
    masks = watch(host, operand, out)
    run = getattr(host, f"copy_{operand.itemsize}_{operand.n}")
    run(operand.m, operand.batches, ctypes.byref(operand.abi()), ctypes.byref(out.abi()))
    result = counts(host)
    assert result[0] == 0, "touched what is not the tensor's, or not aligned"
    assert np.array_equal(out.values(), operand.values())
    rest = out.buffer.copy()
    rest[out.offsets.ravel()] = 0
    assert not rest.any()
    del masks
    return result


def plain(itemsize: int, m: int, n: int, stride: int, start: int = 0, batches: int = 1) -> Tensor:
    return Tensor(itemsize, batches, m * stride, Levels(stride), Levels(1), m, n, start)


ALL = list(itertools.product(TYPES, WIDTHS))


@pytest.mark.parametrize(("itemsize", "n"), ALL)
@pytest.mark.parametrize("m", [1, 130, 200])
def test_aligned_rows_move_in_runs(host: ctypes.CDLL, itemsize: int, n: int, m: int) -> None:
    stride = -(-n // 16) * 16
    _, runs, elements = copy(host, plain(itemsize, m, n, stride), plain(itemsize, m, n, stride))
    assert runs == 2 * m * (n // 8)
    assert elements == 2 * m * (n % 8)


@pytest.mark.parametrize(("itemsize", "n"), ALL)
@pytest.mark.parametrize(("stride", "start"), [(111, 0), (112, 1), (112, 7), (109, 3)])
def test_unaligned_rows_move_element_by_element(
    host: ctypes.CDLL, itemsize: int, n: int, stride: int, start: int
) -> None:
    m = 131
    _, runs, elements = copy(host, plain(itemsize, m, n, stride, start), plain(itemsize, m, n, stride, start))
    if itemsize == 8 and stride % 2 == 0 and start % 2 == 0:
        assert runs > 0
    elif stride % 8 or start % (16 // min(itemsize, 8)):
        assert runs == 0
        assert elements == 2 * m * n


@pytest.mark.parametrize(("itemsize", "n"), ALL)
def test_batches(host: ctypes.CDLL, itemsize: int, n: int) -> None:
    m = 67
    operand = Tensor(itemsize, 3, 0, Levels(112), Levels(1), m, n)  # shared by all batches
    out = plain(itemsize, m, n, 112, batches=3)
    assert copy(host, operand, out)[1] > 0
    odd = Tensor(itemsize, 3, m * 112 + 1, Levels(112), Levels(1), m, n)
    copy(host, plain(itemsize, m, n, 112, batches=3), odd)


@pytest.mark.parametrize(("itemsize", "n"), ALL)
@pytest.mark.parametrize("period", [1, 2, 3, 6])
def test_batches_of_two_levels(host: ctypes.CDLL, itemsize: int, n: int, period: int) -> None:
    m, size = 67, 67 * 112
    out = plain(itemsize, m, n, 112, batches=6)
    for inner, outer in ((size, 0), (0, size), (7 * size, size), (size, period * size)):
        operand = Tensor(itemsize, 6, inner, Levels(112), Levels(1), m, n, 0, period, outer)
        assert copy(host, operand, out)[1] > 0
    rows = Tensor(itemsize, 6, 112, Levels(0), Levels(1), m, n, 0, period, 448)  # a mask of each batch
    assert copy(host, rows, out)[1] > 0


@pytest.mark.parametrize(("itemsize", "n"), ALL)
@pytest.mark.parametrize("period", [1, 7, 48, 128, 500])
def test_rows_of_two_levels(host: ctypes.CDLL, itemsize: int, n: int, period: int) -> None:
    m = 300
    repeated = Tensor(itemsize, 1, 0, Levels(112, period, 0), Levels(1), m, n)
    assert copy(host, repeated, plain(itemsize, m, n, 112))[1] > 0
    apart = Tensor(itemsize, 1, 0, Levels(112, period, period * 112 + 336), Levels(1), m, n)
    assert copy(host, repeated, apart)[1] > 0
    unaligned = Levels(112, period, period * 112 + 337)
    operand, out = (Tensor(itemsize, 1, 0, unaligned, Levels(1), m, n) for _ in range(2))
    copy(host, operand, out)


@pytest.mark.parametrize(("itemsize", "n"), ALL)
def test_column_major(host: ctypes.CDLL, itemsize: int, n: int) -> None:
    m = 150
    out = Tensor(itemsize, 1, 0, Levels(1), Levels(m + 10), m, n)
    _, _, elements = copy(host, plain(itemsize, m, n, 112), out)
    assert elements >= m * n


@pytest.mark.parametrize(("itemsize", "n"), ALL)
@pytest.mark.parametrize("head", [1, 3, 8, 13, 16, 26, 32, 52])
def test_heads(host: ctypes.CDLL, itemsize: int, n: int, head: int) -> None:
    sequence, m = 48, 96  # (2, N / head, 48, head)
    heads = -(-n // head)
    rows = Levels(head, sequence, heads * sequence * head)
    out = Tensor(itemsize, 1, 0, rows, Levels(1, head, sequence * head), m, n)
    _, runs, _ = copy(host, plain(itemsize, m, n, 112), out)
    reads = m * (n // 8)
    # A head of whole runs is written in runs; a row of it is then aligned, or not.
    aligned = head % 8 == 0 and head * itemsize % (8 if itemsize == 1 else 16) == 0
    assert runs == (2 * reads if aligned else reads)


@pytest.mark.parametrize(("itemsize", "n"), ALL)
def test_every_third_column(host: ctypes.CDLL, itemsize: int, n: int) -> None:
    m = 40
    out = Tensor(itemsize, 1, 0, Levels(3 * n), Levels(3), m, n, start=2)
    copy(host, plain(itemsize, m, n, 112), out)


@pytest.mark.parametrize(("itemsize", "n"), ALL)
def test_rows_and_columns_know_their_places(host: ctypes.CDLL, itemsize: int, n: int) -> None:
    m = 300
    out = Tensor(4, 2, m * 112, Levels(112), Levels(1), m, n)
    masks = watch(host, out, out)
    getattr(host, f"place_{itemsize}_{n}")(m, 2, ctypes.byref(out.abi()))
    assert counts(host)[0] == 0
    expected = 1000.0 * np.arange(m)[:, None] + np.arange(n)
    assert (out.values() == expected).all()
    del masks
