"""Canonical text, builders, the op table."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
from hypothesis import given, settings

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import GeneratorError, PlanError, SpecError
from comfuse.generator.ops import AXES, ELEMENTWISE, MONOIDS, REDUCTIONS, STRUCTURAL, camel_case
from comfuse.generator.passes import normalize
from comfuse.generator.spec import DType, FusedSpec, Space

from .strategies import specs

BF16 = DType.BF16


@settings(max_examples=200, deadline=None)
@given(specs())
def test_text_round_trip(spec: FusedSpec) -> None:
    assert FusedSpec.parse(spec.text()) == spec
    assert FusedSpec.parse(spec.text()).text() == spec.text()
    assert hash(FusedSpec.parse(spec.text())) == hash(spec)


@pytest.mark.parametrize("value", [0.1, -0.0, 1e-40, math.inf, -math.inf, 2.0**-1074])
def test_constants_survive_the_text_exactly(value: float) -> None:
    b = SpecBuilder(64, 64, BF16)
    b.output("y", b.op("add", b.gemm(), b.const(value)), BF16)
    parsed = FusedSpec.parse(b.spec().text()).nodes[1].value
    assert parsed is not None
    assert math.copysign(1, parsed) == math.copysign(1, value)
    assert parsed == value


def test_nan_constant_survives_the_text() -> None:
    b = SpecBuilder(64, 64, BF16)
    b.output("y", b.op("add", b.gemm(), b.const(math.nan)), BF16)
    text = b.spec().text()
    assert FusedSpec.parse(text).text() == text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 99}', "null"])
def test_parse_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        FusedSpec.parse(text)


def test_errors_carry_node_and_reason() -> None:
    spec_error, plan_error = SpecError("x", "is wrong"), PlanError("too large", node="x")
    assert (spec_error.node, spec_error.reason, str(spec_error)) == ("x", "is wrong", "x: is wrong")
    assert (plan_error.node, plan_error.reason, str(plan_error)) == ("x", "too large", "x: too large")
    assert str(PlanError("too large")) == "too large"
    assert issubclass(SpecError, GeneratorError)
    assert issubclass(PlanError, GeneratorError)


def test_op_table_is_consistent() -> None:
    assert camel_case("gelu_tanh") == "GeluTanh"
    assert not set(ELEMENTWISE) & set(REDUCTIONS)
    functors = [op.functor for op in ELEMENTWISE.values()] + [m.functor for m in MONOIDS.values()]
    assert len(set(functors)) == len(functors)
    assert not (set(ELEMENTWISE) | set(REDUCTIONS)) & set(STRUCTURAL)
    for op in ELEMENTWISE.values():
        assert isinstance(float(op.evaluate(*[0.5] * op.arity)), float)
        assert op.cost > 0
        assert op.nan
        assert op.precision
    for op in ELEMENTWISE.values():
        if op.commutative:
            assert op.evaluate(0.25, 3.0) == op.evaluate(3.0, 0.25)


def test_reductions_are_monoids_over_axes() -> None:
    assert {f"{axis}_{m.name}" for m in MONOIDS.values() for axis in m.axes} == set(REDUCTIONS)
    for name, reduction in REDUCTIONS.items():
        assert reduction.name == name
        assert reduction.space is AXES[reduction.axis]
        assert reduction.is_plain == (list(reduction.fields) == ["value"])
        assert len(reduction.evaluate([1.0, 2.0])) == len(reduction.fields)
    every = {"sum", "prod", "max", "min", "sumsq", "welford"}
    for axis in ("col", "full"):
        assert {r.monoid.name for r in REDUCTIONS.values() if r.axis == axis} == every
    assert {r.monoid.name for r in REDUCTIONS.values() if r.axis == "group"} == every | {"softmax"}
    assert {r.monoid.name for r in REDUCTIONS.values() if r.axis == "row"} == set(MONOIDS)


@pytest.mark.parametrize(
    "name, values, result",
    [
        ("argmax", [1.0, 3.0, 3.0], (1.0,)),
        ("argmin", [3.0, 1.0, 1.0], (1.0,)),
        ("argmax", [1.0, math.nan, math.inf, math.nan], (1.0,)),
        ("argmin", [math.nan, -math.inf], (0.0,)),
        ("argmax", [-math.inf, -math.inf], (0.0,)),
        ("max", [], (-math.inf,)),
        ("prod", [], (1.0,)),
        ("prod", [1e300, 1e300], (math.inf,)),
        ("softmax", [0.0, 0.0], (0.0, 2.0, math.log(2.0))),
    ],
)
def test_monoids_at_the_edges(name: str, values: list[float], result: tuple[float, ...]) -> None:
    assert MONOIDS[name].evaluate(values) == result


@pytest.mark.parametrize("peak", [-math.inf, math.inf])
def test_softmax_of_an_infinite_peak(peak: float) -> None:
    found, sumexp, lse = MONOIDS["softmax"].evaluate([-math.inf, peak])
    assert (found, lse) == (peak, peak)
    assert math.isnan(sumexp)


def test_spaces_join() -> None:
    scalar, row, column, group, tile = Space.SCALAR, Space.ROW, Space.COLUMN, Space.GROUP, Space.TILE
    assert column.join(group) is group.join(column) is group
    assert row.join(group) is row.join(column) is tile
    for space in Space:
        assert space.join(space) is space.join(scalar) is scalar.join(space) is space
        assert space.join(tile) is tile.join(space) is tile


@pytest.mark.parametrize(
    "name, arguments, result",
    [
        ("div", (1.0, 0.0), math.inf),
        ("div", (1.0, -0.0), -math.inf),
        ("log", (0.0,), -math.inf),
        ("exp", (1000.0,), math.inf),
        ("pow", (-0.0, -3.0), -math.inf),
        ("pow", (0.0, -2.0), math.inf),
        ("pow", (-10.0, 309.0), -math.inf),
        ("rsqrt", (0.0,), math.inf),
        ("log1p", (-1.0,), -math.inf),
        ("sign", (math.nan,), 0.0),
        ("logical_not", (math.nan,), 0.0),
        ("softplus", (1000.0,), 1000.0),
        ("round", (2.5,), 2.0),
        ("round", (-1.5,), -2.0),
        ("trunc", (-2.9,), -2.0),
        ("floor", (-0.5,), -1.0),
        ("ceil", (math.inf,), math.inf),
        ("fmod", (-5.0, 3.0), -2.0),
        ("remainder", (-5.0, 3.0), 1.0),
        ("remainder", (5.0, -3.0), -1.0),
        ("elu", (-math.inf, 2.0), -2.0),
        ("hardswish", (4.0,), 4.0),
        ("hardswish_backward", (2.0, math.nan), 2.0),
        ("quick_gelu", (0.0,), 0.0),
        ("gelu_backward", (2.0, 0.0), 1.0),
        ("silu_backward", (2.0, 0.0), 1.0),
        ("tanh_backward", (3.0, 0.5), 2.25),
        ("sigmoid_backward", (4.0, 0.5), 1.0),
        ("logical_xor", (math.nan, 0.0), 1.0),
        ("isnan", (math.inf,), 0.0),
        ("isinf", (-math.inf,), 1.0),
        ("isfinite", (math.nan,), 0.0),
    ],
)
def test_float64_semantics_at_the_edges(name: str, arguments: tuple[float, ...], result: float) -> None:
    assert ELEMENTWISE[name].evaluate(*arguments) == result


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("div", (0.0, 0.0)),
        ("div", (math.nan, 0.0)),
        ("log", (-1.0,)),
        ("sqrt", (-1.0,)),
        ("pow", (-2.0, 0.5)),
        ("sin", (math.inf,)),
        ("maximum", (math.nan, 1.0)),
        ("maximum", (1.0, math.nan)),
        ("minimum", (math.nan, 1.0)),
        ("minimum", (1.0, math.nan)),
        ("relu", (math.nan,)),
        ("softplus", (math.nan,)),
        ("floor", (math.nan,)),
        ("fmod", (1.0, 0.0)),
        ("remainder", (math.inf, 2.0)),
        ("tan", (math.inf,)),
        ("asin", (1.5,)),
        ("acos", (-math.inf,)),
        ("acosh", (0.5,)),
        ("atanh", (2.0,)),
        ("fmax", (math.nan, math.nan)),
        ("fmin", (math.nan, math.nan)),
        ("hypot", (math.nan, 1.0)),
        ("elu", (math.nan, 1.0)),
        ("hardsigmoid", (math.nan,)),
        ("hardswish", (-math.inf,)),
        ("mish", (math.nan,)),
        ("silu_backward", (1.0, math.inf)),
        ("gelu_backward", (1.0, math.nan)),
    ],
)
def test_nan_semantics(name: str, arguments: tuple[float, ...]) -> None:
    assert math.isnan(ELEMENTWISE[name].evaluate(*arguments))


# --- the catalogue --------------------------------------------------------------------------------------


def names(spec: FusedSpec) -> list[str]:
    return [o.name for o in spec.operands]


def test_linear_operands() -> None:
    assert names(catalog.linear(64, 64, BF16)) == []
    spec = catalog.linear(64, 64, BF16, bias=DType.FP32, activation="gelu", residual=BF16, out=DType.FP16)
    assert names(spec) == ["bias", "residual"]
    assert [o.dtype for o in spec.operands] == [DType.FP32, BF16]
    assert spec.outputs[0].dtype is DType.FP16


def test_linear_refuses_an_unknown_activation() -> None:
    with pytest.raises(SpecError, match=r"got 'swish', allowed: .*silu"):
        catalog.linear(64, 64, BF16, activation="swish")


@pytest.mark.parametrize("bias", [None, BF16])
@pytest.mark.parametrize("residual", [None, BF16])
@pytest.mark.parametrize("weight", [None, DType.FP32])
def test_norm_operands_follow_the_arguments(
    bias: DType | None, residual: DType | None, weight: DType | None
) -> None:
    present = [n for n, d in (("bias", bias), ("residual", residual)) if d is not None]
    layernorm = catalog.layernorm(
        64, 64, BF16, bias=bias, residual=residual, ln_weight=weight, ln_bias=weight
    )
    parameters = ["ln_weight", "ln_bias"] if weight is not None else []
    assert names(layernorm) == [*present, *parameters, "eps"]
    for position in ("before", "after"):
        rmsnorm = catalog.rmsnorm(
            64, 64, BF16, bias=bias, residual=residual, rms_weight=weight, residual_position=position
        )
        parameters = ["rms_weight", "eps", "weight_offset"] if weight is not None else ["eps"]
        assert names(rmsnorm) == [*present, *parameters]


def test_rmsnorm_refuses_an_unknown_position() -> None:
    with pytest.raises(SpecError, match="got 'middle', allowed: 'before', 'after'"):
        catalog.rmsnorm(64, 64, BF16, residual=BF16, residual_position="middle")


def test_catalogue_scalars_are_scalars() -> None:
    for spec in (
        catalog.layernorm(64, 64, BF16),
        catalog.gemma_block(64, 64, BF16),
        catalog.softmax(64, 64, BF16),
    ):
        for operand in spec.operands:
            assert (operand.space is Space.SCALAR) == (operand.name in ("eps", "weight_offset", "scale"))
        assert dataclasses.replace(normalize(spec), nodes=spec.nodes, outputs=spec.outputs) == spec


def test_a_hash_is_of_the_fields_and_stays_in_its_process() -> None:
    """Strings hash otherwise in another process."""
    spec, other = (catalog.linear(64, 64, DType.BF16, bias=DType.BF16) for _ in range(2))
    assert (hash(spec), spec) == (hash(other), other)
    assert hash(spec) != hash(dataclasses.replace(spec, k=128))
    assert "_hash" in vars(spec)
    restored = pickle.loads(pickle.dumps(spec))
    assert "_hash" not in vars(restored)
    assert {spec: 1}[restored] == 1


def test_strided_marks_what_it_names() -> None:
    b = SpecBuilder(64, 64, DType.BF16)
    x = b.gemm()
    b.output("y", x, DType.BF16)
    b.output("z", x, DType.FP32, strided=True)
    spec = b.spec()
    assert [o.strided for o in spec.outputs] == [False, True]
    assert [o.strided for o in spec.strided("y").outputs] == [True, True]
    assert spec.strided() == spec
    with pytest.raises(SpecError, match="w: no output of this program; it has y, z"):
        spec.strided("w")
