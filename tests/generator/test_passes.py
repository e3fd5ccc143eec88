"""Passes keep the float64 meaning, are idempotent, and give the canonical forms."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.interpret import interpret
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes import PASSES, normalize
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Space

from .strategies import TAME, agree, arguments, flat, is_stable, specs

BF16 = DType.BF16


def ops(spec: FusedSpec) -> list[str]:
    return [node.op for node in spec.nodes]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_each_pass_keeps_the_meaning(data: st.DataObject) -> None:
    spec = data.draw(specs(TAME, max_nodes=25, feedback=True))
    gemm, operands = data.draw(arguments(spec))
    before = interpret(spec, gemm, operands)
    for transform in PASSES:
        transformed = transform(spec)
        if not agree(before, interpret(transformed, gemm, operands)):
            assume(is_stable(spec, gemm, operands))
            pytest.fail(f"{transform.__name__} changes the meaning")
        spec = transformed


@settings(max_examples=300, deadline=None)
@given(specs(max_nodes=25, feedback=True))
def test_normalize_is_idempotent_and_keeps_the_interface(spec: FusedSpec) -> None:
    once = normalize(spec)
    assert normalize(once) == once
    kept = dataclasses.replace(once, nodes=spec.nodes, outputs=spec.outputs)
    assert kept == spec
    for before, after in zip(spec.outputs, once.outputs, strict=True):
        assert dataclasses.replace(after, node=before.node) == before
        assert spaces(once)[after.node] is spaces(spec)[before.node]
    products = sum(node.op in ("mul", "div") for node in spec.nodes)
    reductions = sum(node.op in REDUCTIONS for node in spec.nodes)
    # A constant or a root may be new, a product for each shift that is folded, and what turns a field of a
    # fused reduction into the old result; nothing else.
    assert len(once.nodes) <= len(spec.nodes) + 2 + products + 3 * reductions


def program(build) -> FusedSpec:
    """The normal form of ``build(b, x)`` with x the GEMM, stored as y."""
    b = SpecBuilder(64, 64, BF16, group=32)
    b.output("y", build(b, b.gemm(name="x")), BF16)
    return normalize(b.spec())


@pytest.mark.parametrize(
    "build, expected",
    [
        (lambda b, x: b.op("mul", x, x), ["gemm", "square"]),
        (lambda b, x: b.op("pow", x, b.const(2.0)), ["gemm", "square"]),
        (lambda b, x: b.op("pow", x, b.const(0.5)), ["gemm", "sqrt"]),
        (lambda b, x: b.op("pow", x, b.const(1.0)), ["gemm"]),
        (lambda b, x: b.op("pow", x, b.const(3.0)), ["gemm", "square", "mul"]),
        (lambda b, x: b.op("add", x, b.const(0.0)), ["gemm"]),
        (lambda b, x: b.op("mul", b.const(1.0), x), ["gemm"]),
        (lambda b, x: b.op("neg", b.op("neg", x)), ["gemm"]),
        (lambda b, x: b.op("maximum", b.const(0.0), x), ["gemm", "relu"]),
        (lambda b, x: b.op("reciprocal", b.op("sqrt", x)), ["gemm", "rsqrt"]),
        (lambda b, x: b.op("div", b.const(1.0), b.op("sqrt", x)), ["gemm", "rsqrt"]),
        (lambda b, x: b.op("div", x, b.const(4.0)), ["gemm", "const", "mul"]),
        (lambda b, x: b.op("mul", b.op("mul", x, b.const(3.0)), b.const(2.0)), ["gemm", "const", "mul"]),
        (lambda b, x: b.op("add", x, b.op("mul", b.const(3.0), b.const(2.0))), ["gemm", "const", "add"]),
        (lambda b, x: b.op("add", b.op("exp", x), b.op("exp", x)), ["gemm", "exp", "add"]),
        (lambda b, x: b.op("where", b.const(1.0), x, b.op("exp", x)), ["gemm"]),
        (lambda b, x: b.op("row_sum", b.op("mul", x, x)), ["gemm", "row_sumsq"]),
        (lambda b, x: b.op("full_sum", b.op("pow", x, b.const(2.0))), ["gemm", "full_sumsq"]),
        (lambda b, x: b.op("pow", x, b.const(4.0)), ["gemm", "square", "square"]),
        (lambda b, x: b.op("square", b.op("abs", b.op("neg", x))), ["gemm", "square"]),
        (lambda b, x: b.op("maximum", x, b.const(-math.inf)), ["gemm"]),
        (lambda b, x: b.op("minimum", b.const(math.inf), x), ["gemm"]),
        (lambda b, x: b.op("ne", x, x), ["gemm", "isnan"]),
        (lambda b, x: b.op("eq", b.op("abs", x), b.const(math.inf)), ["gemm", "isinf"]),
        (lambda b, x: b.op("eq", x, b.const(0.0)), ["gemm", "logical_not"]),
        (lambda b, x: b.op("ne", b.op("gt", x, b.const(1.0)), b.const(0.0)), ["gemm", "const", "gt"]),
        (
            lambda b, x: b.op("where", b.op("ne", x, b.const(0.0)), x, b.row_index()),
            ["gemm", "row_index", "where"],
        ),
        (
            lambda b, x: b.op("where", b.op("logical_not", x), x, b.row_count()),
            ["gemm", "row_count", "where"],
        ),
        (lambda b, x: b.op("add", b.op("row_max", x), b.op("row_max", x)), ["gemm", "row_max", "add"]),
        (
            lambda b, x: b.op("add", b.op("mul", x, b.row_index()), b.row_index("again")),
            ["gemm", "row_index", "mul", "add"],
        ),
        # A quotient by a row's value: one reciprocal a row.
        (lambda b, x: b.op("div", x, b.op("row_sum", x)), ["gemm", "row_sum", "reciprocal", "mul"]),
        (lambda b, x: b.op("div", x, b.op("group_max", x)), ["gemm", "group_max", "reciprocal", "mul"]),
        (lambda b, x: b.op("div", x, b.op("col_max", x)), ["gemm", "col_max", "div"]),
        # What is rounded to an integer is not rounded before that.
        (lambda b, x: b.op("floor", b.op("div", x, b.const(41.0))), ["gemm", "const", "div", "floor"]),
        (lambda b, x: b.op("trunc", b.op("div", x, b.op("row_max", x))), ["gemm", "row_max", "div", "trunc"]),
        (lambda b, x: b.op("floor", b.op("div", x, b.const(4.0))), ["gemm", "const", "mul", "floor"]),
        (lambda b, x: b.op("round", b.op("div", x, b.const(41.0))), ["gemm", "const", "mul", "round"]),
    ],
)
def test_canonical_forms(build, expected: list[str]) -> None:
    assert ops(program(build)) == expected


def test_whole_quotients_stay_whole() -> None:
    """49 times the float64 next to 1 / 49 is less than 1."""
    spec = program(lambda b, x: b.op("floor", b.op("div", x, b.const(49.0))))
    whole = [float(49 * i) for i in range(spec.n)]
    assert interpret(spec, [whole], []) == [[[float(i) for i in range(spec.n)]]]


def test_a_replacement_never_narrows_what_is_stored() -> None:
    b = SpecBuilder(64, 64, BF16)
    b.gemm()
    tile, scalar = b.load("t", Space.TILE, BF16), b.load("s", Space.SCALAR)
    b.output("y", b.op("where", b.const(1.0), scalar, tile), BF16)
    assert "where" in ops(normalize(b.spec()))


def test_a_replacement_never_cuts_a_stored_vector_off_the_gemm() -> None:
    """Both branches are one row vector, but only the choice depends on the rows of the GEMM."""
    b = SpecBuilder(64, 64, BF16)
    condition = b.op("col_sum", b.gemm())
    row = b.load("r", Space.ROW, BF16)
    b.output("y", b.op("where", condition, row, row), BF16)
    once = normalize(b.spec())
    assert normalize(once) == once
    assert ops(once) == ["gemm", "col_sum", "load", "where"]


def load(b: SpecBuilder, name: str, space: Space) -> int:
    return b.load(name, space, DType.FP32)


FOLDED = ["mul", "mul", "sub"]


@pytest.mark.parametrize(
    "c, r", [(c, r) for c in (Space.COLUMN, Space.SCALAR) for r in (Space.COLUMN, Space.SCALAR)]
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_shift_by_row_is_folded_into_its_scale(c: Space, r: Space, order: int) -> None:
    def build(b: SpecBuilder, x: int) -> int:
        shift, scale = load(b, "c", c), load(b, "r", r)
        return b.op("mul", *(b.op("sub", x, shift), scale)[::order])

    spec = program(build)
    assert ops(spec) == ["gemm", "load", "load", *FOLDED]
    scaled, shift = (spec.nodes[i] for i in spec.nodes[-1].inputs)
    assert (scaled.inputs[0], set(shift.inputs)) == (0, {1, 2})
    values = [v if space is Space.SCALAR else [v] for space, v in ((c, 0.5), (r, 4.0))]
    assert flat(interpret(spec, [[3.0, -2.0] * 32], values)[0]) == [10.0, -10.0] * 32


def test_a_folded_shift_is_folded_again() -> None:
    def build(b: SpecBuilder, x: int) -> int:
        c, r, s = (load(b, name, Space.COLUMN) for name in "crs")
        return b.op("mul", b.op("mul", b.op("sub", x, c), r), s)

    spec = program(build)
    assert [op for op in ops(spec) if op != "load"] == ["gemm", "mul", "mul", "mul", "mul", "sub"]
    assert normalize(spec) == spec


@pytest.mark.parametrize(
    "build",
    [
        # A scale by column, a shift by column, an unscaled shift, c - x.
        lambda b, x: b.op("mul", b.op("sub", x, load(b, "c", Space.COLUMN)), load(b, "w", Space.ROW)),
        lambda b, x: b.op("mul", b.op("sub", x, load(b, "w", Space.ROW)), load(b, "r", Space.COLUMN)),
        lambda b, x: b.op("mul", b.op("sub", load(b, "c", Space.COLUMN), x), load(b, "r", Space.COLUMN)),
        # The largest entry of a row must give exactly zero.
        lambda b, x: b.op("mul", b.op("sub", x, b.op("row_max", x)), load(b, "r", Space.SCALAR)),
        lambda b, x: b.op("mul", b.op("sub", x, b.op("abs", b.op("row_min", x))), load(b, "r", Space.SCALAR)),
    ],
)
def test_other_differences_stay(build) -> None:
    assert [op for op in ops(program(build)) if op in ("sub", "mul")] == ["sub", "mul"]


def test_a_difference_with_other_readers_stays() -> None:
    def build(b: SpecBuilder, x: int) -> int:
        centred = b.op("sub", x, load(b, "c", Space.COLUMN))
        return b.op("add", b.op("exp", centred), b.op("mul", centred, load(b, "r", Space.COLUMN)))

    assert [op for op in ops(program(build)) if op in ("sub", "mul")] == ["sub", "mul"]
