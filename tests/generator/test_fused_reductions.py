"""Mean with variance, and largest entry with the sum of exponentials, become one reduction."""

from __future__ import annotations

import math

import pytest

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.interpret import interpret
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes import normalize
from comfuse.generator.spec import DType, FusedSpec

from .strategies import flat

BF16 = DType.BF16
AXES = ("row", "group", "col", "full")


def ops(spec: FusedSpec) -> list[str]:
    return [node.op for node in spec.nodes]


def reductions(spec: FusedSpec) -> list[str]:
    return [op for op in ops(normalize(spec)) if op in REDUCTIONS]


def builder(n: int = 64) -> SpecBuilder:
    return SpecBuilder(n, 64, BF16, group=n // 2)


def count(b: SpecBuilder, axis: str) -> int:
    """The number of elements that a reduction runs over, as a node."""
    columns = b.const({"row": b.n, "group": b.n // 2, "col": 1, "full": b.n}[axis])
    return columns if axis in ("row", "group") else b.op("mul", b.row_count(), columns)


def mean(b: SpecBuilder, axis: str, x: int) -> int:
    return b.op("div", b.op(f"{axis}_sum", x), count(b, axis))


def variance(b: SpecBuilder, axis: str, x: int) -> tuple[int, int]:
    centred = b.op("sub", x, mean(b, axis, x))
    return centred, mean(b, axis, b.op("mul", centred, centred))


def same_values(spec: FusedSpec, gemm: list[list[float]]) -> None:
    for before, after in zip(interpret(spec, gemm, []), interpret(normalize(spec), gemm, []), strict=True):
        assert flat(after) == pytest.approx(flat(before), rel=1e-12, abs=1e-15, nan_ok=True)


NUMBERS = [[0.5, -3.0, 2.25, 8.0, 1.0, 1.0, -0.5, 4.0], [7.0, 0.0, 0.25, -1.0, 3.0, 2.0, 2.0, -6.0]]


# --- mean and variance ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 49, 64, 768, 1000, 4104, 5376])
def test_mean_and_variance_become_one_welford(n: int) -> None:
    b = SpecBuilder(n, 64, BF16)
    centred, var = variance(b, "row", b.gemm())
    b.output("y", b.op("mul", centred, b.op("rsqrt", var)), BF16)
    expected = ["gemm", "row_welford", "field", "field", "rsqrt", "mul", "mul", "sub"]
    assert ops(normalize(b.spec())) == expected


@pytest.mark.parametrize("axis", AXES)
def test_over_every_axis(axis: str) -> None:
    b = builder(8)
    x = b.gemm()
    _, var = variance(b, axis, x)
    b.output("mean", mean(b, axis, x), DType.FP32)
    b.output("var", var, DType.FP32)
    assert reductions(b.spec()) == [f"{axis}_welford"]
    same_values(b.spec(), NUMBERS)


@pytest.mark.parametrize("axis", AXES)
def test_difference_of_moments_becomes_welford(axis: str) -> None:
    b = builder(8)
    x = b.gemm()
    average = mean(b, axis, x)
    b.output("v", b.op("sub", mean(b, axis, b.op("square", x)), b.op("mul", average, average)), DType.FP32)
    assert [op for op in ops(normalize(b.spec())) if op != "row_count"] == [
        "gemm",
        f"{axis}_welford",
        "field",
    ]
    same_values(b.spec(), NUMBERS)


def test_the_count_may_be_divided_in_any_way() -> None:
    b = builder()
    x = b.gemm()
    inverse_m = b.op("reciprocal", b.row_count())
    total = b.op("mul", b.op("full_sum", x), b.const(1 / 64))
    average = b.op("mul", total, inverse_m)
    centred = b.op("sub", x, average)
    b.output("q", b.op("full_sum", b.op("square", centred)), DType.FP32)
    assert reductions(b.spec()) == ["full_welford"]


def test_unbiased_variance_scales_the_welford() -> None:
    b = builder()
    x = b.gemm()
    centred = b.op("sub", x, mean(b, "row", x))
    b.output("v", b.op("div", b.op("row_sumsq", centred), b.const(63)), DType.FP32)
    spec = normalize(b.spec())
    assert ops(spec) == ["gemm", "row_welford", "field", "const", "mul"]
    assert spec.nodes[3].value == pytest.approx(64 / 63)


def test_a_sum_beside_the_mean_of_columns_stays_a_sum() -> None:
    """It is 0 where there are no rows, and a mean is not."""
    b = builder()
    x = b.gemm()
    _, var = variance(b, "col", x)
    b.output("total", b.op("col_sum", x), DType.FP32)
    b.output("var", var, DType.FP32)
    assert sorted(reductions(b.spec())) == ["col_sum", "col_welford"]


@pytest.mark.parametrize(
    "axis, of, divisor",
    [("row", "row", 32), ("row", "group", 64), ("col", "full", 1), ("group", "group", 64)],
)
def test_other_averages_are_no_means(axis: str, of: str, divisor: int) -> None:
    b = builder()
    x = b.gemm()
    average = b.op("mul", b.op(f"{of}_sum", x), b.const(1 / divisor))
    b.output("q", b.op(f"{axis}_sumsq", b.op("sub", x, average)), DType.FP32)
    assert not any(op.endswith("welford") for op in reductions(b.spec()))


def test_rmsnorm_keeps_its_sum_of_squares() -> None:
    assert reductions(catalog.rmsnorm(64, 64, BF16, rms_weight=BF16)) == ["row_sumsq"]


def test_catalogue_layernorm_is_canonical_but_for_its_shift() -> None:
    spec = catalog.layernorm(64, 64, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16)
    assert sorted(ops(normalize(spec))) == sorted([*ops(spec), "mul"])


# --- softmax and logsumexp --------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
EXTREMES = [
    [0.5, -3.0, 2.25, 8.0, 1.0, 1.0, -0.5, 4.0],
    [-INF] * 8,
    [-INF, 1.0, -INF, -INF, -INF, -INF, -INF, -INF],
    [INF, 1.0, 0.0, INF, -INF, 0.0, 0.0, 0.0],
    [NAN, 1.0, 0.0, 3.0, -INF, INF, 0.0, NAN],
    [-800.0, 800.0, 799.0, 0.0, -700.0, -701.0, -702.0, -703.0],
]


def exponentials(b: SpecBuilder, axis: str, x: int, shift: int) -> tuple[int, int]:
    e = b.op("exp", b.op("sub", x, shift), name="e")
    return e, b.op(f"{axis}_sum", e, name="total")


def guarded(b: SpecBuilder, peak: int) -> int:
    """As torch.logsumexp decomposes."""
    infinite = b.op("eq", b.op("abs", peak), b.const(INF))
    return b.op("where", infinite, b.const(0.0), peak)


@pytest.mark.parametrize("axis", ["row", "group"])
def test_softmax_is_one_reduction(axis: str) -> None:
    b = builder(8)
    x = b.gemm()
    e, total = exponentials(b, axis, x, b.op(f"{axis}_max", x))
    b.output("y", b.op("div", e, total), BF16)
    spec = normalize(b.spec())
    assert ops(spec) == ["gemm", f"{axis}_softmax", "field", "sub", "exp", "field", "reciprocal", "mul"]
    same_values(b.spec(), EXTREMES)


@pytest.mark.parametrize("axis", ["row", "group"])
def test_guarded_logsumexp_is_one_field(axis: str) -> None:
    b = builder(8)
    x = b.gemm()
    shift = guarded(b, b.op(f"{axis}_max", x))
    _, total = exponentials(b, axis, x, shift)
    b.output("lse", b.op("add", b.op("log", total), shift), DType.FP32)
    spec = normalize(b.spec())
    assert ops(spec) == ["gemm", f"{axis}_softmax", "field"]
    assert spec.nodes[2].field == "lse"
    same_values(b.spec(), EXTREMES)


def test_a_guarded_sum_that_is_read_elsewhere_comes_from_the_same_reduction() -> None:
    b = builder(8)
    x = b.gemm()
    shift = guarded(b, b.op("row_max", x))
    e, total = exponentials(b, "row", x, shift)
    b.output("lse", b.op("add", b.op("log", total), shift), DType.FP32)
    b.output("y", b.op("div", e, total), DType.FP32)
    b.output("total", total, DType.FP32)
    assert reductions(b.spec()) == ["row_softmax"]
    same_values(b.spec(), EXTREMES)


def test_plain_logsumexp_keeps_its_nan_for_infinite_rows() -> None:
    b = builder(8)
    x = b.gemm()
    peak = b.op("row_max", x)
    _, total = exponentials(b, "row", x, peak)
    b.output("lse", b.op("add", peak, b.op("log", total)), DType.FP32)
    assert [node.field for node in normalize(b.spec()).nodes if node.op == "field"] == ["max", "sumexp"]
    same_values(b.spec(), EXTREMES)
    (lse,) = interpret(normalize(b.spec()), EXTREMES, [])
    assert [math.isnan(v) for v in flat(lse)] == [False, True, False, True, True, False]


def test_a_largest_entry_is_taken_from_the_fused_reduction() -> None:
    b = builder(8)
    x = b.gemm()
    peak = b.op("row_max", x)
    _, total = exponentials(b, "row", x, peak)
    b.output("total", total, DType.FP32)
    b.output("peak", peak, DType.FP32)
    b.output("lse", b.field(b.op("row_softmax", x), "lse"), DType.FP32)
    assert reductions(b.spec()) == ["row_softmax"]
    same_values(b.spec(), EXTREMES)


@pytest.mark.parametrize(
    "shift",
    [
        lambda b, x: b.op("row_min", x),
        lambda b, x: b.op("group_max", x),
        lambda b, x: b.op("row_max", b.op("abs", x)),
        lambda b, x: b.op("where", b.op("isnan", b.op("row_max", x)), b.const(0.0), b.op("row_max", x)),
        lambda b, x: b.op("where", b.op("isinf", b.op("row_max", x)), b.const(1.0), b.op("row_max", x)),
    ],
)
def test_sums_with_another_shift_stay(shift) -> None:
    b = builder(8)
    x = b.gemm()
    _, total = exponentials(b, "row", x, shift(b, x))
    b.output("total", total, DType.FP32)
    assert not any(op.endswith("softmax") for op in reductions(b.spec()))
    same_values(b.spec(), EXTREMES)


def test_softmax_keeps_the_exact_zero_of_its_largest_entry() -> None:
    """The shift by the largest entry is not folded into a scale."""
    b = builder()
    x = b.gemm()
    stats = b.op("row_softmax", x)
    b.output("y", b.op("mul", b.op("sub", x, b.field(stats, "max")), b.field(stats, "sumexp")), BF16)
    assert [op for op in ops(normalize(b.spec())) if op != "field"] == ["gemm", "row_softmax", "sub", "mul"]
