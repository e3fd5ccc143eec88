"""The monoids of csrc/include/comfuse/sm90/monoids.hpp, compiled for the host, against the op table."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from comfuse.generator.ops import MONOIDS
from tests.functors.host import compile_for_host

STUBS = Path(__file__).parent / "stubs"
INF, NAN = math.inf, math.nan
LOWEST = float(np.finfo(np.float32).min)
COUNTS = (1, 3, 8, 9, 31, 64, 65, 100, 128, 200, 1001)
FIELDS = [(name, field) for name, monoid in MONOIDS.items() for field in monoid.fields]
EXACT = ("max", "min", "argmax", "argmin")

Reduce = Callable[[str, str, np.ndarray], float]


@pytest.fixture(scope="module")
def reduce(tmp_path_factory: pytest.TempPathFactory) -> Reduce:
    """One field of a reduction; fails if the tag of the words shows in it."""
    host = compile_for_host(tmp_path_factory.mktemp("monoids"), (STUBS / "monoids.cpp").read_text(), STUBS)

    def run(name: str, field: str, row: np.ndarray) -> float:
        monoid = MONOIDS[name]
        function = getattr(host, f"{monoid.functor}_{monoid.fields[field]}")
        function.restype = ctypes.c_float
        x = np.ascontiguousarray(row, np.float32)
        results = [function(ctypes.c_void_p(x.ctypes.data), x.size, tag) for tag in (0, 1)]
        assert np.float32(results[0]).tobytes() == np.float32(results[1]).tobytes()
        return float(results[0])

    return run


def expected(name: str, field: str, row: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        values = [float(x) for x in np.asarray(row, np.float32)]
        return MONOIDS[name].evaluate(values)[list(MONOIDS[name].fields).index(field)]


def close(got: float, exact: float, scale: float) -> bool:
    with np.errstate(over="ignore"):
        rounded = float(np.float32(exact))
    return got == rounded or (math.isnan(got) and math.isnan(exact)) or abs(got - exact) <= scale


def scale_of(name: str, field: str, row: np.ndarray, exact: float) -> float:
    """What float32 may get wrong."""
    x = np.asarray(row, np.float64)
    if name in EXACT:
        return 0.0
    if name == "sum":
        return 1e-6 * float(np.abs(x).sum())
    if name == "prod":
        return 1e-7 * (x.size + 2) * abs(exact)
    if field == "mean":
        return 1e-6 * float(np.abs(x).mean())
    if field == "var":
        # Means are float32: of the deviations, the rounding of a mean is a part.
        return 1e-5 * exact + float(np.spacing(np.float32(abs(x.mean())))) / 2 * math.sqrt(exact)
    return 3e-6 * abs(exact) + (3e-6 if field == "lse" else 0.0)


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = []
    for n in COUNTS:
        found.append(rng.normal(0, 3, n))
        found.append(1.0 + 0.01 * rng.normal(0, 1, n))
        found.append(1e4 + rng.normal(0, 1, n))
        found.append(np.sort(rng.normal(0, 30, n)))  # the maximum grows all along
        found.append(np.sort(rng.normal(0, 30, n))[::-1])
        found.append(rng.integers(-2, 3, n).astype(float))  # many that are equal
        found.append(np.full(n, -7.25))
    return [row.astype(np.float32) for row in found]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_rows(name: str, field: str, reduce: Reduce) -> None:
    for row in rows():
        exact = expected(name, field, row)
        got = reduce(name, field, row)
        assert close(got, exact, scale_of(name, field, row, exact)), (row.size, row[:4], got, exact)


@pytest.mark.parametrize(("name", "field"), FIELDS)
@pytest.mark.parametrize("special", [NAN, INF, -INF, LOWEST, -LOWEST])
def test_one_special_element_reaches_the_result(
    name: str, field: str, special: float, reduce: Reduce
) -> None:
    rng = np.random.default_rng(1)
    for n in (1, 40, 100, 300):
        for at in {0, 7, n // 2, n - 1} & set(range(n)):
            row = rng.uniform(0.8, 1.2, n).astype(np.float32)  # whose product stays within float32
            row[at] = special
            exact, got = expected(name, field, row), reduce(name, field, row)
            if abs(special) == -LOWEST and name not in (*EXACT, "softmax"):
                continue  # sums with and without overflow depend on the order
            if name == "welford" and math.isinf(special):
                assert not math.isfinite(got)  # NaN or the infinity, by the order of subtractions
                continue
            assert close(got, exact, scale_of(name, field, row, exact)), (n, at, got, exact)


@pytest.mark.parametrize("fill", [-INF, INF, LOWEST, -LOWEST, NAN, 0.0])
@pytest.mark.parametrize("field", ["max", "sumexp", "lse"])
def test_softmax_of_uniform_rows(fill: float, field: str, reduce: Reduce) -> None:
    for n in (1, 8, 100, 129):
        row = np.full(n, fill, np.float32)
        exact, got = expected("softmax", field, row), reduce("softmax", field, row)
        assert close(got, exact, scale_of("softmax", field, row, exact)), (n, got, exact)


@pytest.mark.parametrize("at", [0, 5, 40, 77, 129])
def test_softmax_of_masked_rows(at: int, reduce: Reduce) -> None:
    """All but one element masked, by -inf or by the lowest number: exp of the rest is 1."""
    for mask in (-INF, LOWEST):
        row = np.full(130, mask, np.float32)
        row[at] = -3.5
        assert reduce("softmax", "max", row) == -3.5
        assert reduce("softmax", "sumexp", row) == 1.0
        assert reduce("softmax", "lse", row) == -3.5


def test_logsumexp_of_infinite_rows_is_that_of_torch(reduce: Reduce) -> None:
    for row in ([-INF] * 9, [INF] * 9, [INF, -INF, 1.0], [INF, NAN], [-INF, 2.0], [1.0, INF] * 40):
        got = reduce("softmax", "lse", np.array(row, np.float32))
        exact = torch.logsumexp(torch.tensor(row), 0).item()
        assert got == pytest.approx(exact, nan_ok=True)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_index_is_that_of_torch(name: str, reduce: Reduce) -> None:
    rng = np.random.default_rng(2)
    for n in COUNTS:
        for choices in ([0.0, 1.0], [NAN, 1.0, 2.0], [-INF, INF], [-INF], [INF], [NAN], [0.0, -0.0]):
            row = rng.choice(np.array(choices, np.float32), n)
            exact = getattr(torch, name)(torch.from_numpy(row)).item()
            assert reduce(name, "value", row) == exact


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (100.0, 1.0), (1e4, 0.1), (-3e6, 1.0)])
def test_variance_survives_a_large_mean(mean: float, std: float, reduce: Reduce) -> None:
    rng = np.random.default_rng(3)
    row = (mean + std * rng.normal(0, 1, 1000)).astype(np.float32)
    exact = expected("welford", "var", row)
    assert abs(reduce("welford", "var", row) - exact) <= scale_of("welford", "var", row, exact)


def test_variance_of_equal_elements_is_zero(reduce: Reduce) -> None:
    for n in COUNTS:
        assert reduce("welford", "var", np.full(n, 1234.567, np.float32)) == 0.0


def test_products_of_powers_of_two_are_exact(reduce: Reduce) -> None:
    rng = np.random.default_rng(4)
    row = 2.0 ** rng.integers(-1, 2, 200).astype(np.float32)
    assert reduce("prod", "value", row) == float(np.prod(row.astype(np.float64)))
