"""Which activations become tanh.approx: those whose small results nothing magnifies, in bfloat16 only.

GELU only in what is handed on to another GEMM, with a factor that waits behind that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.catalog import chains, linear
from comfuse.generator.chain import ChainSpec
from comfuse.generator.interpret import interpret
from comfuse.generator.ops import FAST
from comfuse.generator.passes import normalize
from comfuse.generator.passes.approximate import approximate, approximate_handed_on, multiplied
from comfuse.generator.plan import plan
from comfuse.generator.plan.chain import force_chain, plan_chain
from comfuse.generator.plan.chain.kernel import ChainPlan
from comfuse.generator.spec import DType, FusedSpec, Space

from .chain_programs import CHAINS
from .deferred_strategies import NORMS, Middle
from .strategies import TAME, agree, arguments, specs

BF16, FP16, FP32 = DType.BF16, DType.FP16, DType.FP32
SAID = "gelu: by tanh.approx, as results are rounded to 8 bits or fewer"
Build = Callable[[SpecBuilder, int], int]


def program(build: Build, dtype: DType = BF16) -> SpecBuilder:
    """``build(b, x)`` of the GEMM with a bias, stored as y."""
    b = SpecBuilder(64, 64, dtype, products=2)
    x = b.op("add", b.gemm(), b.load("bias", Space.ROW, dtype))
    b.output("y", build(b, x), dtype)
    return b


def fast(spec: FusedSpec) -> list[str]:
    return [node.op for node in spec.nodes if node.op in FAST]


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "silu", "quick_gelu", "gelu_tanh"])
def test_every_activation_of_one_tanh_is_replaced_in_bfloat16(name: str) -> None:
    b = program(lambda b, x: b.op(name, x, name="activated"))
    (op,) = fast(approximate(b.spec()))
    assert op == ("fast_tanh" if name == "tanh" else f"{name}_of_double")
    in_fp16 = program(lambda b, x: b.op(name, x), FP16).spec()
    assert approximate(in_fp16) == in_fp16


def gradient(name: str, dtype: DType = BF16, kept: DType = BF16) -> FusedSpec:
    """An activation of the first product, and its derivative times the second."""
    b = program(lambda b, x: b.op(f"{name}_backward", b.gemm(1), x, name="d"), dtype)
    x = next(i for i, node in enumerate(b.spec().nodes) if node.op == "add")
    b.output("middle", b.op(name, x, name="middle"), kept)
    return b.spec()


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_an_activation_and_its_derivative_share_their_argument(name: str) -> None:
    """So that the compiler takes one tanh for both."""
    spec = approximate(gradient(name))
    assert sorted(fast(spec)) == [f"{name}_backward_of_double", f"{name}_of_double"]
    d, middle = (node for node in spec.nodes if node.op in FAST)
    assert d.inputs[-1] == middle.inputs[0]


def test_the_derivative_of_gelu_reads_what_an_exact_gelu_computes() -> None:
    for kept in (BF16, FP32):
        spec = approximate(gradient("gelu", kept=kept))
        assert [node.op for node in spec.nodes if node.name in ("d", "middle")] == [
            "gelu_backward_of_cdf",
            "mul",
        ]
        d, middle = (next(node for node in spec.nodes if node.name == name) for name in ("d", "middle"))
        assert d.inputs[1:] == middle.inputs
        assert spec.nodes[middle.inputs[1]].op == "normal_cdf"


def test_each_goes_alone_without_the_other() -> None:
    alone = program(lambda b, x: b.op("gelu_backward", b.gemm(1), x)).spec()
    assert fast(approximate(alone)) == ["gelu_backward_of_double"]
    in_fp16 = gradient("gelu", FP16, FP16)
    assert approximate(in_fp16) == in_fp16

    def of_others(b: SpecBuilder, x: int) -> int:
        return b.op("add", b.op("gelu", b.gemm(1)), b.op("gelu_backward", b.gemm(1), x))

    assert fast(approximate(program(of_others).spec())) == ["gelu_backward_of_double"]


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.op("mul", b.op("silu", x), b.gemm(1)),
        lambda b, x: b.op("mul", b.gemm(1), b.op("silu", x)),
        lambda b, x: b.op("mul", x, b.op("sigmoid", b.op("mul", x, b.load("slope", Space.ROW)))),
        lambda b, x: b.op("neg", b.op("gelu_tanh", x)),
        lambda b, x: b.op("add", b.op("quick_gelu", x), b.load("residual", Space.TILE, BF16)),
        lambda b, x: b.op("sub", b.load("shift", Space.COLUMN), b.op("mul", b.op("tanh", x), b.const(50.0))),
        lambda b, x: b.op("mul", x, b.op("row_sum", b.op("mul", b.op("silu", x), b.gemm(1)))),
        lambda b, x: b.op("silu", b.op("exp", x)),  # whatever it reads itself
    ],
)
def test_gates_sums_and_products_may_read_it(build: Build) -> None:
    assert len(fast(approximate(program(build).spec()))) == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.op("exp", b.op("gelu", x)),
        lambda b, x: b.op("log", b.op("sigmoid", x)),
        lambda b, x: b.op("rsqrt", b.op("sigmoid", x)),
        lambda b, x: b.op("div", b.gemm(1), b.op("sigmoid", x)),
        lambda b, x: b.op("div", b.op("silu", x), b.load("scale", Space.ROW)),
        lambda b, x: b.op("where", b.op("gt", b.gemm(1), b.const(0.0)), b.op("gelu", x), x),
        lambda b, x: b.op("where", b.op("gelu", x), x, b.gemm(1)),
        lambda b, x: b.op("maximum", b.op("gelu", x), b.gemm(1)),
        lambda b, x: b.op("sub", x, b.op("row_max", b.op("silu", x))),
        # Through sums and products to what magnifies.
        lambda b, x: b.op("exp", b.op("neg", b.op("add", b.op("mul", b.op("gelu", x), x), b.gemm(1)))),
    ],
)
def test_nothing_else_may(build: Build) -> None:
    spec = program(build).spec()
    assert approximate(spec) == spec
    assert approximate_handed_on(spec) == (spec, 1.0)


def test_one_reader_that_magnifies_is_enough() -> None:
    def build(b: SpecBuilder, x: int) -> int:
        activated = b.op("silu", x)
        return b.op("add", activated, b.op("exp", activated))

    spec = program(build).spec()
    assert approximate(spec) == spec


def test_what_another_output_stores_is_exact() -> None:
    b = program(lambda b, x: b.op("silu", x, name="activated"))
    b.output("kept", next(i for i, node in enumerate(b.spec().nodes) if node.name == "activated"), FP32)
    assert approximate(b.spec()) == b.spec()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_meaning_stays_and_twice_is_once(data: st.DataObject) -> None:
    spec = normalize(data.draw(specs(TAME, max_nodes=20)))
    once = approximate(spec)
    assert approximate(once) == once
    assert (once.operands, len(once.outputs)) == (spec.operands, len(spec.outputs))
    gemm, operands = data.draw(arguments(spec))
    assert agree(interpret(spec, gemm, operands), interpret(once, gemm, operands))


# --- what is handed on to another GEMM ---


def tile(b: SpecBuilder) -> int:
    return b.load("residual", Space.TILE, BF16)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.op("gelu", x),
        lambda b, x: b.op("mul", b.op("gelu", x), b.gemm(1)),
        lambda b, x: b.op("add", b.op("neg", b.op("gelu", x)), tile(b)),
    ],
)
def test_gelu_is_exact_where_its_elements_are_seen(build: Build) -> None:
    spec = program(build).spec()
    assert approximate(spec) == spec


@pytest.mark.parametrize(
    "build, gelus, factor",
    [
        (lambda b, x: b.op("gelu", x), 1, 2.0),
        (lambda b, x: b.op("mul", b.gemm(1), b.op("gelu", x)), 1, 2.0),
        (lambda b, x: b.op("neg", b.op("mul", b.op("neg", b.op("gelu", x)), tile(b))), 1, 2.0),
        (lambda b, x: b.op("mul", b.op("gelu", x), b.op("gelu", b.gemm(1))), 2, 4.0),
        (lambda b, x: b.op("mul", *(2 * (b.op("gelu", x),))), 1, 4.0),
        (lambda b, x: b.op("mul", b.op("gelu", x), b.op("add", b.op("gelu", b.gemm(1)), x)), 2, 2.0),
        (lambda b, x: b.op("add", b.op("gelu", x), tile(b)), 1, 1.0),
        (lambda b, x: b.op("sub", tile(b), b.op("neg", b.op("gelu", x))), 1, 1.0),
        (lambda b, x: b.op("add", b.op("gelu", x), b.op("gelu", b.gemm(1))), 2, 1.0),
        (lambda b, x: b.op("mul", x, b.op("row_sum", b.op("gelu", x))), 1, 1.0),
        (lambda b, x: b.op("gelu", b.op("gelu", x)), 1, 2.0),  # what another reads is exact
        (lambda b, x: b.op("gelu", b.op("add", b.op("silu", b.gemm(1)), x)), 1, 2.0),
    ],
)
def test_a_factor_moves_through_products_up_to_a_sum(build: Build, gelus: int, factor: float) -> None:
    spec = program(build).spec()
    handed, left = approximate_handed_on(spec)
    assert (fast(handed).count("half_gelu_of_quadruple"), left) == (gelus, factor)
    assert "half_gelu_of_quadruple" not in fast(approximate(spec))


def test_a_sum_reads_what_is_whole() -> None:
    spec = program(lambda b, x: b.op("add", b.op("mul", b.op("gelu", x), b.gemm(1)), tile(b))).spec()
    handed, _ = approximate_handed_on(spec)
    (whole,) = (node for node in handed.nodes if node.name.endswith("_whole"))
    assert whole.op == "mul"
    assert 2.0 in (handed.nodes[i].value for i in whole.inputs)


def test_what_is_replaced_keeps_its_name() -> None:
    handed, _ = approximate_handed_on(program(lambda b, x: b.op("gelu", x, name="activated")).spec())
    assert [node.name for node in handed.nodes if node.op in FAST] == ["activated"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_handed_on_times_the_factor_is_what_was_to_be(data: st.DataObject) -> None:
    drawn = data.draw(specs(TAME, max_nodes=20))
    spec = normalize(dataclasses.replace(drawn, outputs=(dataclasses.replace(drawn.outputs[0], dtype=BF16),)))
    handed, factor = approximate_handed_on(spec)
    gemm, operands = data.draw(arguments(spec))
    (value,) = interpret(handed, gemm, operands)
    assert agree(interpret(spec, gemm, operands), [times(factor, value)])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_multiplied_is_the_program_of_a_product_times_the_factor(data: st.DataObject) -> None:
    spec = normalize(data.draw(specs(TAME)))
    gemm, operands = data.draw(arguments(spec))
    assert multiplied(spec, 1.0) is spec
    expected = interpret(spec, times(4.0, gemm), operands)
    assert agree(expected, interpret(multiplied(spec, 4.0), gemm, operands))


def times(factor: float, value: Any) -> Any:
    return [times(factor, part) for part in value] if isinstance(value, list) else factor * value


# --- in the plans ---


def first_link(chosen: ChainPlan) -> FusedSpec:
    return chosen.deferred.links.links[0]


def test_a_chain_with_gelu_takes_it_and_says_so() -> None:
    chosen = plan_chain(CHAINS["chain_mlp_gelu"])
    assert fast(first_link(chosen)) == ["half_gelu_of_quadruple"]
    assert SAID in chosen.decisions
    last = chosen.deferred.links.last
    (product,) = (node for node in last.nodes if node.name == "acc_scaled")
    assert [last.nodes[i].value for i in product.inputs] == [None, 2.0]
    assert not fast(chosen.spec.links[0]), "what was asked for stays as it was"


def test_a_single_gemm_takes_only_what_is_precise_by_itself() -> None:
    def said(activation: str, out: DType) -> list[str]:
        chosen = plan(linear(768, 768, BF16, activation=activation, out=out))
        return [line for line in chosen.decisions if "tanh.approx" in line]

    assert said("silu", BF16) == ["silu" + SAID.removeprefix("gelu")]
    assert not said("silu", FP32)
    assert not said("gelu", BF16)


def test_a_chain_in_half_precision_does_not() -> None:
    chosen = force_chain(chains.mlp(128, 128, 512, FP16))
    assert not fast(first_link(chosen))
    assert not any("tanh.approx" in line for line in chosen.decisions)


def test_behind_the_second_gemm_too_where_the_result_is_rounded() -> None:
    chain = chains.b2b(64, 64, 256, BF16, activation0="relu", activation1="silu")
    assert fast(force_chain(chain).deferred.links.last) == ["silu_of_double"]
    last = chain.last
    wide = dataclasses.replace(last, outputs=(dataclasses.replace(last.outputs[0], dtype=FP32),))
    assert not fast(force_chain(ChainSpec((chain.links[0], wide))).deferred.links.last)


def test_gelu_behind_the_second_gemm_is_exact() -> None:
    chain = chains.b2b(64, 64, 256, BF16, activation0="gelu", activation1="gelu")
    links = force_chain(chain).deferred.links
    assert [fast(link) for link in links.links] == [["half_gelu_of_quadruple"], []]


@pytest.mark.parametrize("norm", sorted(NORMS))
def test_what_a_row_is_normed_by_is_exact(norm: str) -> None:
    """A norm magnifies rows that are small, and is deferred: what is handed on no longer reads it."""
    b = Middle(64, 64, BF16)
    b.output("p", NORMS[norm](b, b.op("gelu", b.gemm())), BF16)
    chosen = force_chain(ChainSpec((b.spec(), linear(64, 64, BF16))))
    assert not fast(first_link(chosen))


def test_what_gates_a_norm_is_not() -> None:
    b = Middle(64, 64, BF16)
    x = b.gemm()
    b.output("p", b.op("mul", NORMS["rms"](b, x), b.op("silu", x)), BF16)
    chosen = force_chain(ChainSpec((b.spec(), linear(64, 64, BF16))))
    assert len(fast(first_link(chosen))) == 1


@pytest.mark.parametrize("other", ["exp", "reciprocal"])
def test_what_something_large_multiplies_is_not(other: str) -> None:
    """sigmoid(-x) exp(x) is 1 where x is large."""
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    small = b.op("sigmoid", b.op("neg", x))
    b.output("y", b.op("mul", small, b.op("neg", b.op(other, x))), BF16)
    assert not fast(approximate(normalize(b.spec())))


def test_sums_that_share_terms_are_taken_apart_once() -> None:
    b = SpecBuilder(64, 64, BF16)
    terms = [b.gemm(), b.load("t", Space.TILE, BF16)]
    for _ in range(60):
        terms.append(b.op("add", terms[-1], terms[-2]))
    b.output("y", b.op("silu", terms[-1]), BF16)
    assert fast(approximate(normalize(b.spec()))) == ["silu_of_double"]
