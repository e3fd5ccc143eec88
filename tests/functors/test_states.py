"""Row reductions in the middle of a chain (comfuse/sm90/chain_states.hpp), compiled for the host."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest

from tests.functors.host import compile_for_host

STUBS = Path(__file__).parent / "stubs"
SIZES = (8, 40, 64, 200, 512)  # parts of blocks, one, several
LOWEST = float(np.finfo(np.float32).min)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_host(tmp_path_factory.mktemp("states"), (STUBS / "states.cpp").read_text(), STUBS)


def run(host: ctypes.CDLL, x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What each row's owners have, (2, 2, 4); and the sums of exponential times weight, (2,)."""
    results = np.full((4, 6), -77.0, np.float32)
    arguments = [np.ascontiguousarray(a, np.float32) for a in (x, weights)]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arguments, results)]
    getattr(host, f"middle_{x.shape[1]}")(*pointers)
    owners = results[:, :4].reshape(2, 2, 4).transpose(1, 0, 2)
    return owners, results[:, 4:].sum(0)


def rows(kind: str, h: int) -> np.ndarray:
    x = np.random.default_rng(h).standard_normal((2, h)).astype(np.float32) * 3
    if kind == "rising":
        x += np.linspace(-40, 40, h, dtype=np.float32)  # the maximum grows in each block
    if kind == "falling":
        x += np.linspace(60, -60, h, dtype=np.float32)
    if kind == "far":
        x += 1e4  # exp of it is infinite, and the mean is far from zero
    if kind == "masked":
        x[0, : h // 2] = -math.inf  # whole blocks of it
        x[1, h // 3 :] = -math.inf
    if kind == "lowest":
        x[0, :] = LOWEST
    return x


@pytest.mark.parametrize("h", SIZES)
@pytest.mark.parametrize("kind", ["plain", "rising", "falling", "far", "masked", "lowest"])
def test_rows_and_what_is_accumulated_beside_them(host: ctypes.CDLL, kind: str, h: int) -> None:
    x = rows(kind, h)
    weights = np.random.default_rng(1).standard_normal(h).astype(np.float32)
    owners, sums = run(host, x, weights)
    exact = x.astype(np.float64)
    peak = exact.max(1)
    e = np.exp(exact - peak[:, None])
    # exp2 of a rounded product: 2^-24 of the exponent.
    allowed = 1e-5 * e.sum(1)
    for owner in owners.transpose(1, 0, 2):
        assert (owner[:, 0] == peak).all()
        assert np.abs(owner[:, 3] - e.sum(1)).max() <= allowed.max()
        if kind not in ("masked", "lowest"):
            assert np.abs(owner[:, 1] - exact.mean(1)).max() <= 1e-6 * np.abs(exact).max()
            # What a mean is rounded to shifts the deviations from it.
            ulps = 2**-22 * np.abs(exact).max(1) / exact.std(1)
            assert (np.abs(owner[:, 2] / exact.var(1) - 1) <= 1e-5 + ulps).all()
    assert (np.abs(sums - (e * weights).sum(1)) <= 1e-5 * (e * np.abs(weights)).sum(1) + 1e-30).all()


@pytest.mark.parametrize("h", SIZES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_reaches_the_row_s_result(host: ctypes.CDLL, bad: float, h: int) -> None:
    x = rows("plain", h)
    x[0, h // 2] = bad
    owners, sums = run(host, x, np.ones(h))
    assert np.isnan(owners[0, :, 3]).all()
    assert math.isnan(sums[0])
    assert np.isfinite(owners[1]).all()
    assert math.isfinite(sums[1])


@pytest.mark.parametrize("h", SIZES)
def test_a_row_that_is_masked_throughout_weighs_nothing(host: ctypes.CDLL, h: int) -> None:
    """What scales it is then infinite, and the result NaN, as torch.softmax has it."""
    x = rows("plain", h)
    x[1] = -math.inf
    owners, sums = run(host, x, np.ones(h))
    assert (owners[1, :, 0] == -math.inf).all()
    assert (owners[1, :, 3] == 0.0).all()
    assert sums[1] == 0.0
