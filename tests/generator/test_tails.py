"""Values that no tile waits for, and those that no tile can wait for."""

from __future__ import annotations

import pytest

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import PlanError
from comfuse.generator.spec import DType, FusedSpec, Space

from .test_phases import names, program

BF16, FP32 = DType.BF16, DType.FP32


def test_a_value_of_a_row_that_is_only_stored_is_a_tail() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.op("mul", b.gemm(), b.load("scale", Space.COLUMN, BF16), name="x")
    b.output("peak", b.op("row_max", x, name="peak"), FP32)
    p = program(b.spec())
    assert len(p.phases) == 1
    assert not p.waits
    assert [len(phase.columns) for phase in p.phases] == [1]
    assert p.row_tail is not None
    assert names(p, p.row_tail.stores) == ["peak"]
    assert "peak: by the last tile of a row block to finish; no tile waits" in p.decisions


def test_what_tiles_and_a_store_read_is_no_tail() -> None:
    """The exchange is there already, and so is its result."""
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    peak = b.op("row_max", x, name="peak")
    low = b.op("row_min", x, name="low")  # only stored, beside an exchange
    b.output("y", b.op("sub", x, peak), BF16)
    b.output("peak", peak, FP32)
    b.output("low", low, FP32)
    p = program(b.spec())
    assert p.row_tail is None
    assert [names(p, phase.stores) for phase in p.phases] == [[], ["y", "peak", "low"]]


def test_quantisation_normalises_then_leaves_the_scale_to_a_tail() -> None:
    """LayerNorm feeds back, the amax of its result does not; the tail may read both."""
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    stats = b.op("row_welford", x, name="stats")
    mean, var = b.field(stats, "mean"), b.field(stats, "var")
    y = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", var), name="y")
    b.output("y", y, BF16)
    amax = b.op("row_max", b.op("abs", y), name="amax")
    b.output("amax", amax, FP32)
    b.output("scale", b.op("mul", amax, var), FP32)
    b.output("mean", mean, FP32)
    p = program(b.spec())
    assert [phase.waits for phase in p.phases] == [True, False]
    assert [names(p, phase.stores) for phase in p.phases] == [[], ["y", "mean"]]
    assert p.row_tail is not None
    assert names(p, p.row_tail.stores) == ["amax", "scale"]


def test_reductions_that_nobody_waits_for_are_tails_in_any_phase() -> None:
    """A group reduction makes a second phase, but no tile has to wait for another."""
    b = SpecBuilder(128, 64, BF16, group=64)
    x = b.gemm()
    b.output("y", b.op("div", x, b.op("group_max", b.op("abs", x), name="amax")), BF16)
    b.output("total", b.op("row_sum", x, name="total"), FP32)
    p = program(b.spec())
    assert len(p.phases) == 2
    assert not p.waits
    assert p.row_tail is not None


def test_columns_and_everything_are_tails() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.op("relu", b.gemm(), name="x")
    total = b.op("col_sum", x, name="total")
    weight = b.load("weight", Space.ROW, BF16)
    b.output("mean", b.op("div", b.op("mul", total, weight), b.row_count()), FP32)
    b.output("loss", b.op("sqrt", b.op("full_sum", x)), FP32)
    p = program(b.spec())
    assert len(p.phases) == 1
    assert (names(p, p.column_stores), names(p, p.full_stores)) == (["mean"], ["loss"])
    assert not p.phases[0].stores


def test_column_reductions_of_normalised_rows() -> None:
    """dbeta of a LayerNorm: reduced in the phase in which its input can be had."""
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    y = b.op("mul", x, b.op("rsqrt", b.op("row_sumsq", x)), name="y")
    b.output("dbeta", b.op("col_sum", y, name="dbeta"), FP32)
    p = program(b.spec())
    assert [[p.spec.nodes[r].op for r in phase.reductions] for phase in p.phases] == [
        ["row_sumsq"],
        ["col_sum"],
    ]
    assert p.phases[0].waits


def feedback(kind: str) -> FusedSpec:
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    total = b.op("full_sum", x, name="total")
    if kind == "both":
        b.output("y", b.op("div", b.op("col_sum", x, name="sums"), total, name="share"), FP32)
    elif kind == "again":
        b.output("y", b.op("row_sum", b.op("sub", x, total, name="shifted"), name="rows"), FP32)
    else:
        b.output("y", b.op("sub", x, total, name="shifted"), BF16)
    return b.spec()


@pytest.mark.parametrize(
    "kind, node, reason",
    [
        ("full", "shifted", "reads 'total', which is complete only when all tiles are"),
        ("again", "shifted", "reads 'total', which is complete only when all tiles are"),
        ("both", "share", "a value a column reads 'total', which is complete only when all columns are"),
    ],
)
def test_feedback_of_all_tiles_is_refused(kind: str, node: str, reason: str) -> None:
    with pytest.raises(PlanError) as caught:
        program(feedback(kind))
    assert caught.value.node == node
    assert reason in caught.value.reason
    assert "comfuse.generator.stages" in caught.value.reason
