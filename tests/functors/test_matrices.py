"""Which matrix of a tensor map is a batch's, and the numbers that the kernel finds it by."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfuse.library import abi
from tests.functors.host import compile_for_host

SOURCE = """
#include "comfuse/sm90/batches.hpp"
using namespace comfuse::sm90;
extern "C" long stride(CfTensor const* tensor, long batches) { return Matrices(*tensor, batches).stride; }
extern "C" long count(CfTensor const* tensor, long batches) { return Matrices(*tensor, batches).count; }
extern "C" int matrix(CfTensor const* tensor, long batches, int batch) {
  return Matrices(*tensor, batches).steps.of(batch);
}
extern "C" long offset(CfTensor const* tensor, long batches, int batch) {
  return batch_steps(*tensor, batches).of(batch);
}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = compile_for_host(tmp_path_factory.mktemp("matrices"), SOURCE)
    for name in ("stride", "count", "matrix", "offset"):
        function = getattr(library, name)
        function.restype = ctypes.c_int if name == "matrix" else ctypes.c_long
        function.argtypes = [ctypes.c_void_p, ctypes.c_long]
        if name in ("matrix", "offset"):
            function.argtypes += [ctypes.c_int]
    return library


STRIDES = st.sampled_from([0, 8, 64, 96, 768, 512 * 768, 3 << 33])


@given(
    outer_count=st.integers(1, 40),
    period=st.integers(1, 40),
    inner=STRIDES,
    outer=STRIDES,
    rest=st.integers(0, 3),
)
def test_both_levels(
    host: ctypes.CDLL, outer_count: int, period: int, inner: int, outer: int, rest: int
) -> None:
    batches = max(1, outer_count * period - rest)
    tensor = abi.Tensor(batch_stride=inner, batch_period=period, batch_outer=outer)
    at, stride, count = ctypes.byref(tensor), None, None
    stride, count = host.stride(at, batches), host.count(at, batches)
    numbers = []
    for batch in range(batches):
        place = batch // period * outer + batch % period * inner
        assert host.offset(at, batches, batch) == place
        if count < 2**31:
            numbers.append(host.matrix(at, batches, batch))
            assert numbers[-1] * stride == place
    if numbers:
        assert max(numbers) < count
        if batches % period == 0:  # the last one is read
            assert max(numbers) == count - 1


def test_what_all_share_is_one_matrix(host: ctypes.CDLL) -> None:
    tensor = abi.Tensor(batch_period=1 << 40)
    assert (host.stride(ctypes.byref(tensor), 12), host.count(ctypes.byref(tensor), 12)) == (0, 1)
    assert host.matrix(ctypes.byref(tensor), 12, 11) == 0
