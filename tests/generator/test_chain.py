"""Chains: their text, what makes them malformed, what they mean."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.chain import ChainSpec, normalize_chain, parse_program, verify_chain
from comfuse.generator.errors import SpecError
from comfuse.generator.interpret import interpret, interpret_chain, interpret_phases
from comfuse.generator.ops.ieee import to_bf16, to_fp16
from comfuse.generator.passes import normalize
from comfuse.generator.phases import split
from comfuse.generator.spec import DType, FusedSpec, Space

from .chain_programs import CHAINS
from .chain_strategies import chain_arguments, chains
from .strategies import agree, arguments, flat, specs

BF16, FP16, FP32 = DType.BF16, DType.FP16, DType.FP32

# --- text ---


@settings(max_examples=100, deadline=None)
@given(chains())
def test_text_restores_the_chain(chain: ChainSpec) -> None:
    assert ChainSpec.parse(chain.text()) == chain
    assert parse_program(chain.text()) == chain
    assert [parse_program(link.text()) for link in chain.links] == list(chain.links)
    assert json.loads(chain.text())["links"] == [json.loads(link.text()) for link in chain.links]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{}", "not the text of a ChainSpec"),
        ('{"version":2,"links":3}', "not the text of a ChainSpec"),
        ('{"version":1,"links":[]}', "spec version 1, this ComFuse reads 2"),
        ('{"version":2,"links":[{"version":2}]}', "not the text of a FusedSpec"),
        ("[]", "not the text of a ChainSpec"),
        ("chain", "Expecting value"),
    ],
)
def test_what_is_no_text_of_a_chain(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        ChainSpec.parse(text)


def test_what_is_no_text_of_a_program() -> None:
    with pytest.raises(ValueError, match="not the text of a FusedSpec"):
        parse_program("[]")


# --- well formed ---


@pytest.mark.parametrize("name", CHAINS)
def test_golden_chains_are_well_formed(name: str) -> None:
    assert verify_chain(CHAINS[name]) is CHAINS[name]


def first(**changes: Any) -> FusedSpec:
    return dataclasses.replace(catalog.linear(64, 32, BF16, activation="relu"), **changes)


def last(**changes: Any) -> FusedSpec:
    return dataclasses.replace(catalog.linear(48, 64, BF16), **changes)


def with_output(change: Callable[[SpecBuilder, int], None]) -> FusedSpec:
    b = SpecBuilder(64, 32, BF16)
    change(b, b.op("relu", b.gemm(), name="x"))
    return b.spec()


@pytest.mark.parametrize(
    "links, node, reason",
    [
        ((), "chain", "a chain has at least two links, got 0"),
        ((first(),), "chain", "a chain has at least two links, got 1"),
        ((first(), last(k=56)), "link 1", "K = 56, but its A has the N = 64 columns of link 0"),
        ((first(), last(dtype=FP16)), "link 1", "A and B are fp16, but its A is a bf16 result"),
        ((first(batched=True), last()), "link 1", "either all links of a chain are batched or none"),
        ((first(), last(), last(k=40)), "link 2", "K = 40, but its A has the N = 48 columns of link 1"),
        ((first(k=0), last()), "spec", "N and K must be at least 1"),
        (
            (with_output(lambda b, x: b.output("h", x, FP32)), last()),
            "h",
            "what link 0 hands on has to be bf16 like its factors, got fp32",
        ),
        (
            (with_output(lambda b, x: b.output("h", x, BF16, strided=True)), last()),
            "h",
            "what a link hands on is never stored, it cannot have strides or heads",
        ),
        (
            (with_output(lambda b, x: b.output("h", x, BF16, heads=32)), last()),
            "h",
            "what a link hands on is never stored, it cannot have strides or heads",
        ),
        (
            (with_output(lambda b, x: b.output("sums", b.op("row_sum", x), BF16)), last()),
            "sums",
            "link 0 has to hand on an (M, H) tile, this is a column",
        ),
        (
            (with_output(lambda b, x: [b.output(name, x, BF16) for name in "hx"] and None), last()),
            "link 0",
            "has to hand on exactly one output, it has h, x",
        ),
    ],
)
def test_malformed_chains(links: tuple[FusedSpec, ...], node: str, reason: str) -> None:
    with pytest.raises(SpecError, match=re.escape(reason)) as caught:
        normalize_chain(ChainSpec(links))
    assert caught.value.node == node


# --- meaning ---


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_normalising_keeps_the_meaning(data: st.DataObject) -> None:
    """With exact arithmetic between the links: what rounds differently would say nothing of the passes."""
    chain = data.draw(chains(("add", "sub", "neg", "abs", "minimum", "maximum", "relu", "where", "gt")))
    gemm, factors, operands = data.draw(chain_arguments(chain))
    normal = normalize_chain(chain)
    assert normalize_chain(normal) == normal
    before = interpret_chain(chain, gemm, factors, operands)
    assert agree(before, interpret_chain(normal, gemm, factors, operands))


@pytest.mark.parametrize("dtype, step", [(BF16, 2.0**-7), (FP16, 2.0**-10)])
def test_the_middle_is_rounded_once_to_even(dtype: DType, step: float) -> None:
    first = SpecBuilder(1, 8, dtype)
    first.output("h", first.op("add", first.gemm(), first.load("x", Space.ROW)), dtype)
    second = SpecBuilder(1, 1, dtype)
    second.output("y", second.gemm(), FP32)
    chain = ChainSpec((first.spec(), second.spec()))
    for exact, rounded in (
        (1 + step / 2, 1.0),
        (1 + 3 * step / 2, 1 + 2 * step),
        (1 + step / 2 + 1e-6, 1 + step),
    ):
        assert interpret_chain(chain, [[exact]], [[[1.0]]], [[0.0]]) == [[[rounded]]]
        assert interpret_chain(chain, [[exact - 0.5]], [[[1.0]]], [[0.5]]) == [[[rounded]]]  # not before


def test_rounding_at_the_ends_of_the_range() -> None:
    assert to_bf16(3.4e38) == math.inf
    assert to_fp16(65519.0) == 65504.0
    assert to_fp16(-65520.0) == -math.inf
    assert math.isnan(to_bf16(math.nan))
    assert math.isnan(to_fp16(math.nan))
    assert math.copysign(1.0, to_bf16(-0.0)) == -1.0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_phases_of_whole_rows_compute_what_the_spec_means(data: st.DataObject) -> None:
    spec = normalize(data.draw(specs(axes=("row", "group"), products=1)))
    gemm, operands = data.draw(arguments(spec))
    program = split(spec, whole_rows=True)
    assert program.row_tail is None
    for x, y in zip(interpret(spec, gemm, operands), interpret_phases(program, gemm, operands), strict=True):
        assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(flat(x), flat(y), strict=True))
