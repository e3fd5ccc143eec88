"""Activations and their derivatives that were written out become one op."""

from __future__ import annotations

import math

import pytest

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.interpret import interpret
from comfuse.generator.passes import normalize
from comfuse.generator.spec import DType, FusedSpec, Space

from .strategies import flat

BF16 = DType.BF16


def ops(spec: FusedSpec) -> list[str]:
    return [node.op for node in spec.nodes]


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


def logistic(b: SpecBuilder, x: int) -> int:
    return b.op("add", b.const(1.0), b.op("exp", b.op("neg", x)))


def silu_by_quotient(b: SpecBuilder, x: int) -> int:
    return b.op("div", x, logistic(b, x))


def quick_gelu(b: SpecBuilder, x: int) -> int:
    return b.op("mul", x, b.op("sigmoid", b.op("mul", b.const(1.702), x)))


def mish(b: SpecBuilder, x: int) -> int:
    return b.op("mul", x, b.op("tanh", b.op("softplus", x)))


def relu6(b: SpecBuilder, x: int) -> int:
    shifted = b.op("add", x, b.const(3.0))
    return b.op("minimum", b.op("maximum", shifted, b.const(0.0)), b.const(6.0))


def hardsigmoid(b: SpecBuilder, x: int) -> int:
    return b.op("div", relu6(b, x), b.const(6.0))


def hardswish(b: SpecBuilder, x: int) -> int:
    return b.op("div", b.op("mul", x, relu6(b, x)), b.const(6.0))


FORMULAS = [
    (lambda b, x: b.op("div", b.const(1.0), logistic(b, x)), "sigmoid"),
    (silu, "silu"),
    (silu_by_quotient, "silu"),
    (quick_gelu, "quick_gelu"),
    (gelu, "gelu"),
    (gelu_tanh, "gelu_tanh"),
    (gelu_tanh_by_products, "gelu_tanh"),
    (mish, "mish"),
    (hardsigmoid, "hardsigmoid"),
    (hardswish, "hardswish"),
    (lambda b, x: b.op("mul", hardsigmoid(b, x), x), "hardswish"),
]


@pytest.mark.parametrize("build, op", FORMULAS)
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


@pytest.mark.parametrize("by_a_factor", [False, True])
def test_a_quotient_by_a_logistic_is_a_gate(by_a_factor: bool) -> None:
    b = SpecBuilder(8, 64, BF16, products=2)
    x, y = b.gemm(), b.gemm(1)
    b.output("y", b.op("div", b.op("mul", x, y) if by_a_factor else y, logistic(b, x)), BF16)
    found = ops(normalize(b.spec()))
    assert found.count("sigmoid") == 1
    assert not {"exp", "div"} & set(found)


def silu_backward(b: SpecBuilder, grad: int, x: int) -> int:
    gate = b.op("sigmoid", x)
    slope = b.op("add", b.const(1.0), b.op("mul", x, b.op("sub", b.const(1.0), gate)))
    return b.op("mul", b.op("mul", grad, gate), slope)


def gelu_backward(b: SpecBuilder, grad: int, x: int) -> int:
    cdf = b.op(
        "mul",
        b.const(0.5),
        b.op("add", b.const(1.0), b.op("erf", b.op("mul", x, b.const(0.7071067811865476)))),
    )
    power = b.op("exp", b.op("mul", b.op("mul", x, x), b.const(-0.5)))
    density = b.op("mul", b.const(0.3989422804014327), power)
    return b.op("mul", grad, b.op("add", cdf, b.op("mul", x, density)))


def gelu_tanh_backward(b: SpecBuilder, grad: int, x: int, cubic: float = 0.044715) -> int:
    square, beta = b.op("mul", x, x), b.const(math.sqrt(2 / math.pi))
    cube = b.op("mul", b.op("mul", square, x), b.const(0.044715))
    gate = b.op("tanh", b.op("mul", beta, b.op("add", x, cube)))
    cdf = b.op("mul", b.const(0.5), b.op("add", gate, b.const(1.0)))
    complement = b.op("sub", b.const(1.0), b.op("mul", gate, gate))
    inner = b.op("mul", b.op("add", b.op("mul", square, b.const(3 * cubic)), b.const(1.0)), beta)
    slope = b.op("mul", b.op("mul", b.op("mul", x, b.const(0.5)), complement), inner)
    return b.op("mul", b.op("add", cdf, slope), grad)


DERIVATIVES = [
    (silu_backward, "silu_backward"),
    (gelu_backward, "gelu_backward"),
    (gelu_tanh_backward, "gelu_tanh_backward"),
]


@pytest.mark.parametrize("build, op", DERIVATIVES)
@pytest.mark.parametrize("scaled", [False, True])
def test_written_out_derivatives_are_found(build, op: str, scaled: bool) -> None:
    b = SpecBuilder(8, 64, BF16)
    grad, x = b.gemm(), b.load("x", Space.TILE, BF16)
    if scaled:  # argument and gradient are products themselves
        scale = b.load("scale", Space.COLUMN, BF16)
        grad, x = b.op("mul", grad, scale), b.op("mul", x, scale)
    b.output("y", build(b, grad, x), BF16)
    spec = normalize(b.spec())
    assert ops(spec)[-1] == op
    assert not {"sigmoid", "erf", "exp", "tanh"} & set(ops(spec))
    values = [[-9.0, -3.0, -1.0, -0.25, 0.0, 0.5, 2.0, 6.0]]
    operands = [values, [0.75]] if scaled else [values]
    before, after = (flat(interpret(s, [[1.0, 2.0, -0.5, 4.0] * 2], operands)[0]) for s in (b.spec(), spec))
    assert after == pytest.approx(before, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.op("mul", b.op("sigmoid", x), b.op("exp", x)),
        lambda b, x: b.op("mul", b.op("mul", x, b.const(0.25)), b.op("add", b.op("erf", x), b.const(1.0))),
        lambda b, x: b.op("mul", b.op("square", x), b.op("sigmoid", x)),
        lambda b, x: b.op("mul", b.op("mul", b.op("exp", x), x), b.op("sigmoid", x)),
        lambda b, x: b.op("mul", x, b.op("sigmoid", b.op("mul", b.const(1.7), x))),
        lambda b, x: b.op("div", x, b.op("add", b.const(2.0), b.op("exp", b.op("neg", x)))),
        lambda b, x: b.op("div", x, b.op("add", b.const(1.0), b.op("exp", x))),
        lambda b, x: b.op("mul", x, b.op("tanh", b.op("softplus", b.op("neg", x)))),
        lambda b, x: b.op("mul", relu6(b, x), x),
    ],
)
def test_what_only_resembles_an_activation_stays(build) -> None:
    b = SpecBuilder(64, 64, BF16)
    b.output("y", build(b, b.gemm()), BF16)
    assert not ({op for _, op in FORMULAS} - {"sigmoid"}) & set(ops(normalize(b.spec())))


def test_what_only_resembles_a_derivative_stays() -> None:
    b = SpecBuilder(64, 64, BF16)
    b.output("y", gelu_tanh_backward(b, b.gemm(), b.load("x", Space.TILE, BF16), cubic=0.05), BF16)
    assert "tanh" in ops(normalize(b.spec()))
