"""The element types of csrc/include/comfuse/numeric.hpp, compiled for the host, against torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.functors.host import compile_for_host

TORCH = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "boolean": torch.bool,
    "int32": torch.int32,
    "int64": torch.int64,
    "fp32": torch.float32,
}
FP8 = ("e4m3", "e5m2")
INTEGERS = ("int8", "uint8", "int32", "int64")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    lines = [
        '#include "comfuse/numeric.hpp"',
        "using namespace comfuse;",
        "#define CONVERT(T) \\",
        '  extern "C" void store_##T(long n, float const* x, T* y) { \\',
        "    for (long i = 0; i < n; ++i) y[i] = from_float<T>(x[i]); } \\",
        '  extern "C" void load_##T(long n, T const* x, float* y) { \\',
        "    for (long i = 0; i < n; ++i) y[i] = to_float(x[i]); }",
        *(f"CONVERT({name})" for name in TORCH),
    ]
    return compile_for_host(tmp_path_factory.mktemp("numeric"), "\n".join(lines))


@pytest.fixture(scope="module")
def store(host: ctypes.CDLL) -> Callable[[str, torch.Tensor], torch.Tensor]:
    def convert(name: str, x: torch.Tensor) -> torch.Tensor:
        x = x.float().contiguous()
        y = torch.empty(x.shape, dtype=TORCH[name])
        _function(host, f"store_{name}")(x.numel(), x.data_ptr(), y.data_ptr())
        return y

    return convert


@pytest.fixture(scope="module")
def load(host: ctypes.CDLL) -> Callable[[str, torch.Tensor], torch.Tensor]:
    def convert(name: str, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape, dtype=torch.float32)
        _function(host, f"load_{name}")(x.numel(), x.data_ptr(), y.data_ptr())
        return y

    return convert


def _function(host: ctypes.CDLL, name: str) -> Callable[[int, int, int], None]:
    function = getattr(host, name)
    function.argtypes, function.restype = [ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p], None
    return function


def all_of(dtype: torch.dtype) -> torch.Tensor:
    """Every value of a format of 8 or 16 bits."""
    size = torch.finfo(dtype).bits
    return torch.arange(2**size).to(torch.uint8 if size == 8 else torch.uint16).view(dtype)


def halfway_points(dtype: torch.dtype) -> torch.Tensor:
    """What lies halfway between neighbours of an fp8 format, and the float32 on either side of it."""
    values = all_of(dtype).float()
    values = values[values.isfinite()].unique()
    beyond = values.max() + torch.tensor([16.0, 8192.0])  # half a unit beyond the largest, e4m3 and e5m2
    halves = torch.cat([(values[1:] + values[:-1]) / 2, beyond, -beyond])
    inf = torch.tensor(torch.inf)
    return torch.cat([halves, torch.nextafter(halves, inf), torch.nextafter(halves, -inf)])


def random_floats() -> torch.Tensor:
    bits = np.random.default_rng(0).integers(0, 2**32, 300_000, np.uint32)
    return torch.from_numpy(bits.view(np.float32))


def check_fp8(name: str, got: torch.Tensor, x: torch.Tensor) -> None:
    # Older torch makes NaN of what exceeds e4m3; this one, like ours, its largest number.
    clamped = x.clamp(-448.0, 448.0) if name == "e4m3" else x
    expected = clamped.to(TORCH[name]).view(torch.uint8)
    expected = torch.where(x.isnan(), 0x7F, expected)  # the sign of a NaN is lost
    wrong = (got.view(torch.uint8) != expected).nonzero().flatten()
    assert wrong.numel() == 0, [(x[i].item(), got[i].item(), expected[i].item()) for i in wrong[:5]]


@pytest.mark.parametrize("name", FP8)
def test_fp8_of_every_bf16(name: str, store: Callable[..., torch.Tensor]) -> None:
    x = all_of(torch.bfloat16).float()
    check_fp8(name, store(name, x), x)


@pytest.mark.parametrize("name", FP8)
def test_fp8_rounds_half_to_even(name: str, store: Callable[..., torch.Tensor]) -> None:
    x = halfway_points(TORCH[name])
    check_fp8(name, store(name, x), x)


@pytest.mark.parametrize("name", FP8)
def test_fp8_of_random_bits(name: str, store: Callable[..., torch.Tensor]) -> None:
    x = random_floats()
    check_fp8(name, store(name, x), x)


def test_fp8_beyond_the_range(store: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([449.0, 480.0, 1e9, torch.inf, -torch.inf, 61439.0, 61440.0, -61440.0])
    assert store("e4m3", x).float().tolist() == [448.0] * 4 + [-448.0] + [448.0] * 2 + [-448.0]
    inf = torch.inf
    assert store("e5m2", x).float().tolist() == [448.0, 512.0, inf, inf, -inf, 57344.0, inf, -inf]


@pytest.mark.parametrize("name", FP8)
def test_fp8_loads(name: str, load: Callable[..., torch.Tensor]) -> None:
    x = all_of(TORCH[name])
    assert torch.equal(load(name, x).nan_to_num(nan=1e9), x.float().nan_to_num(nan=1e9))


def edges(dtype: torch.dtype) -> torch.Tensor:
    """Fractions, and what lies around the ends of an integer type."""
    limits = [float(torch.iinfo(dtype).min), float(torch.iinfo(dtype).max)]
    around = [e + d for e in limits for d in (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)]
    ordinary = torch.linspace(-300, 300, 2401).tolist()
    return torch.tensor(around + ordinary + [1e30, -1e30, torch.inf, -torch.inf, torch.nan, -0.0])


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_truncate_and_saturate(name: str, store: Callable[..., torch.Tensor]) -> None:
    limits = torch.iinfo(TORCH[name])
    for x in (edges(TORCH[name]), random_floats()):
        exact = [0 if np.isnan(v) else limits.max if v == np.inf else limits.min if v == -np.inf else int(v)
                 for v in x.tolist()]  # fmt: skip
        expected = [min(max(v, limits.min), limits.max) for v in exact]
        assert store(name, x).tolist() == expected


def test_all_but_zero_is_true(store: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-45, torch.nan, torch.inf])
    assert store("boolean", x).tolist() == [False, False, True, True, True, True, True]


@pytest.mark.parametrize("name", [*INTEGERS, "boolean"])
def test_integers_load_as_float32_rounds_them(name: str, load: Callable[..., torch.Tensor]) -> None:
    dtype = TORCH[name]
    if name == "boolean":
        x = torch.tensor([False, True])
    else:
        limits = torch.iinfo(dtype)
        numbers = [0, 1, limits.min, limits.max, limits.max // 3, (1 << 24) + 1, -(1 << 24) - 1]
        x = torch.tensor([n for n in numbers if limits.min <= n <= limits.max], dtype=dtype)
    assert torch.equal(load(name, x), x.float())


def test_float32_is_itself(store: Callable[..., torch.Tensor], load: Callable[..., torch.Tensor]) -> None:
    x = random_floats()
    assert torch.equal(store("fp32", x).view(torch.int32), x.view(torch.int32))
    assert torch.equal(load("fp32", x).view(torch.int32), x.view(torch.int32))
