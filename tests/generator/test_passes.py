"""Passes keep the float64 meaning, are idempotent, and find what they are there to find."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import SpecError
from comfuse.generator.interpret import interpret
from comfuse.generator.passes import PASSES, normalize
from comfuse.generator.spec import DType, FusedSpec, Node, Operand, Output, Space

from .strategies import TAME, arguments, flat, specs

BF16 = DType.BF16


def ops(spec: FusedSpec) -> list[str]:
    return [node.op for node in spec.nodes]


def close(a: float, b: float, scale: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= 1e-9 * max(scale, abs(a), abs(b))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_each_pass_keeps_the_meaning(data: st.DataObject) -> None:
    spec = data.draw(specs(TAME))
    gemm, operands = data.draw(arguments(spec))
    before = [flat(v) for v in interpret(spec, gemm, operands)]
    for transform in PASSES:
        spec = transform(spec)
        after = [flat(v) for v in interpret(spec, gemm, operands)]
        for x, y in zip(before, after, strict=True):
            scale = max((abs(v) for v in x if math.isfinite(v)), default=1.0)
            assert all(close(a, b, scale) for a, b in zip(x, y, strict=True)), transform.__name__


@settings(max_examples=300, deadline=None)
@given(specs())
def test_normalize_is_idempotent_and_keeps_the_interface(spec: FusedSpec) -> None:
    once = normalize(spec)
    assert normalize(once) == once
    assert once.operands == spec.operands
    assert [(o.name, o.dtype) for o in once.outputs] == [(o.name, o.dtype) for o in spec.outputs]
    assert (once.n, once.k, once.dtype) == (spec.n, spec.k, spec.dtype)
    products = sum(node.op in ("mul", "div") for node in spec.nodes)
    # A constant or a root may be new, and a product for each shift that is folded; nothing else.
    assert len(once.nodes) <= len(spec.nodes) + 2 + products


def program(build) -> FusedSpec:
    """The normal form of ``build(b, x)`` with x the GEMM, stored as y."""
    b = SpecBuilder(64, 64, BF16)
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
        # A quotient by a row's value: one reciprocal a row.
        (lambda b, x: b.op("div", x, b.op("row_sum", x)), ["gemm", "row_sum", "reciprocal", "mul"]),
    ],
)
def test_canonical_forms(build, expected: list[str]) -> None:
    assert ops(program(build)) == expected


def test_a_replacement_never_narrows_what_is_stored() -> None:
    b = SpecBuilder(64, 64, BF16)
    b.gemm()
    tile, scalar = b.load("t", Space.TILE, BF16), b.load("s", Space.SCALAR)
    b.output("y", b.op("where", b.const(1.0), scalar, tile), BF16)
    assert "where" in ops(normalize(b.spec()))


def variance(b: SpecBuilder, x: int, divisor: float) -> tuple[int, int]:
    mean = b.op("div", b.op("row_sum", x), b.const(b.n))
    centred = b.op("sub", x, mean)
    return centred, b.op("div", b.op("row_sum", b.op("mul", centred, centred)), b.const(divisor))


@pytest.mark.parametrize("n", [8, 49, 64, 768, 1000, 4104, 5376])
def test_mean_and_variance_become_one_welford(n: int) -> None:
    b = SpecBuilder(n, 64, BF16)
    centred, var = variance(b, b.gemm(), n)
    b.output("y", b.op("mul", centred, b.op("rsqrt", var)), BF16)
    expected = ["gemm", "row_welford", "field", "field", "rsqrt", "mul", "mul", "sub"]
    assert ops(normalize(b.spec())) == expected


def test_unbiased_variance_scales_the_welford() -> None:
    b = SpecBuilder(64, 64, BF16)
    _, var = variance(b, b.gemm(), 63)
    b.output("v", var, DType.FP32)
    spec = normalize(b.spec())
    assert ops(spec) == ["gemm", "row_welford", "field", "const", "mul"]
    assert spec.nodes[3].value == pytest.approx(64 / 63)


def test_difference_of_moments_becomes_welford() -> None:
    b = SpecBuilder(64, 64, BF16)
    x, inverse = b.gemm(), b.const(1 / 64)
    mean = b.op("mul", b.op("row_sum", x), inverse)
    moment = b.op("mul", b.op("row_sum", b.op("square", x)), inverse)
    b.output("v", b.op("sub", moment, b.op("mul", mean, mean)), DType.FP32)
    assert ops(normalize(b.spec())) == ["gemm", "row_welford", "field"]


def test_rmsnorm_keeps_its_sum_of_squares() -> None:
    spec = normalize(catalog.rmsnorm(64, 64, BF16, rms_weight=BF16))
    assert [op for op in ops(spec) if op.startswith("row_")] == ["row_sumsq"]


def test_catalogue_layernorm_is_canonical_but_for_its_shift() -> None:
    spec = catalog.layernorm(64, 64, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16)
    assert sorted(ops(normalize(spec))) == sorted([*ops(spec), "mul"])


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


def silu(b: SpecBuilder, x: int) -> int:
    return b.op("mul", b.op("sigmoid", x), x)


def gelu(b: SpecBuilder, x: int) -> int:
    gate = b.op("add", b.const(1.0), b.op("erf", b.op("div", x, b.const(math.sqrt(2)))))
    return b.op("mul", b.op("mul", x, b.const(0.5)), gate)


def gelu_tanh(b: SpecBuilder, x: int) -> int:
    cube = b.op("mul", b.const(0.044715), b.op("pow", x, b.const(3.0)))
    inner = b.op("mul", b.const(math.sqrt(2 / math.pi)), b.op("add", x, cube))
    return b.op("mul", b.const(0.5), b.op("mul", x, b.op("add", b.op("tanh", inner), b.const(1.0))))


def gelu_tanh_by_products(b: SpecBuilder, x: int) -> int:
    """As in older models, with float32 literals."""
    cube = b.op("mul", b.op("mul", b.op("mul", x, x), x), b.const(0.044715))
    inner = b.op("mul", b.op("add", cube, x), b.const(0.7978845834732056))
    return b.op("mul", b.op("mul", b.op("add", b.const(1.0), b.op("tanh", inner)), b.const(0.5)), x)


@pytest.mark.parametrize(
    "build, op",
    [(silu, "silu"), (gelu, "gelu"), (gelu_tanh, "gelu_tanh"), (gelu_tanh_by_products, "gelu_tanh")],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_written_out_activations_are_found(build, op: str, scaled: bool) -> None:
    b = SpecBuilder(8, 64, BF16)
    x = b.gemm()
    if scaled:  # the argument is itself a product
        x = b.op("mul", x, b.load("scale", Space.COLUMN, BF16))
    b.output("y", build(b, x), BF16)
    spec = normalize(b.spec())
    assert ops(spec) == (["gemm", "load", "mul", op] if scaled else ["gemm", op])
    gemm, scale = [[-9.0, -3.0, -1.0, -0.25, 0.0, 0.5, 2.0, 6.0]], [[0.75]]
    before, after = (flat(interpret(s, gemm, scale)[0]) for s in (b.spec(), spec))
    assert after == pytest.approx(before, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.op("mul", b.op("sigmoid", x), b.op("exp", x)),
        lambda b, x: b.op("mul", b.op("mul", x, b.const(0.25)), b.op("add", b.op("erf", x), b.const(1.0))),
        lambda b, x: b.op("mul", b.op("square", x), b.op("sigmoid", x)),
        lambda b, x: b.op("mul", b.op("mul", b.op("exp", x), x), b.op("sigmoid", x)),
    ],
)
def test_what_only_resembles_an_activation_stays(build) -> None:
    assert not {"silu", "gelu", "gelu_tanh"} & set(ops(program(build)))


# --- what verify and infer refuse -----------------------------------------------------------------------

GEMM = Node("acc", "gemm")


def make(*nodes: Node, n: int = 64, k: int = 64, dtype: DType = BF16, operands=(), outputs=None) -> FusedSpec:
    outputs = (Output("y", len(nodes) - 1, BF16),) if outputs is None else outputs
    return FusedSpec(n, k, dtype, tuple(operands), nodes, tuple(outputs))


@pytest.mark.parametrize(
    "spec, node, reason",
    [
        (make(Node("c", "const", value=1.0)), "spec", "exactly one gemm"),
        (make(GEMM, GEMM), "spec", "exactly one gemm"),
        (make(GEMM, n=0), "spec", "at least 1"),
        (make(GEMM, dtype=DType.FP32), "spec", "bf16 or fp16"),
        (make(GEMM, outputs=()), "spec", "must have an output"),
        (make(GEMM, Node("r", "exp", (1,))), "r", "not an earlier node"),
        (make(GEMM, Node("r", "exp", (0, 0))), "r", "takes 1 inputs"),
        (make(GEMM, Node("r", "conv", (0,))), "r", "unknown op"),
        (make(GEMM, Node("r", "load", operand=0)), "r", "does not exist"),
        (make(GEMM, Node("r", "const")), "r", "must have a value"),
        (make(GEMM, Node("w", "row_welford", (0,)), Node("r", "exp", (1,))), "r", "read a field"),
        (make(GEMM, Node("w", "row_welford", (0,))), "y", "store a field"),
        (make(GEMM, Node("w", "row_welford", (0,)), Node("f", "field", (1,), field="m3")), "f", "mean, var"),
        (make(GEMM, Node("w", "row_sum", (0,)), Node("f", "field", (1,), field="mean")), "f", "no fields"),
        (make(GEMM, Node("s", "row_sum", (0,)), Node("r", "row_max", (1,))), "r", "column value"),
        (make(GEMM, Node("c", "const", value=1.0)), "y", "outputs are"),
        (make(GEMM, outputs=(Output("y", 3, BF16),)), "y", "does not exist"),
        (make(GEMM, outputs=(Output("y", 0, BF16), Output("y", 0, BF16))), "y", "distinct"),
        (make(GEMM, operands=(Operand("b", Space.ROW), Operand("b", Space.ROW))), "b", "distinct"),
        (make(GEMM, operands=(Operand("s", Space.SCALAR, BF16),)), "s", "fp32"),
    ],
)
def test_refusals_name_the_node_and_the_reason(spec: FusedSpec, node: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        normalize(spec)
    assert caught.value.node == node
