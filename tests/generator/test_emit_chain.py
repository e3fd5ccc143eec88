"""Emitted kernels of chains: golden text, and a model of the device headers that runs them."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfuse.generator.chain import ChainSpec, normalize_chain
from comfuse.generator.emit import describe_chain, emit_chain
from comfuse.generator.interpret import Matrix, interpret_chain
from comfuse.generator.ops.ieee import to_bf16, to_fp16
from comfuse.generator.plan.chain import ChainPlan, chain_candidates, force_chain, plan_chain
from comfuse.generator.spec import DType, FusedSpec, Space

from . import cpp_model
from .chain_programs import CHAINS
from .chain_strategies import chain_arguments, chains
from .strategies import TAME, flat

FOLDER = Path(__file__).parents[1] / "golden"
UPDATE = os.environ.get("COMFUSE_UPDATE_GOLDEN") == "1"


@pytest.mark.parametrize("name", CHAINS)
def test_golden(name: str) -> None:
    """Refresh with COMFUSE_UPDATE_GOLDEN=1 and read the difference."""
    path = FOLDER / f"{name}.cu"
    text = emit_chain(plan_chain(CHAINS[name])).text
    if UPDATE:
        path.write_text(text)
    assert path.exists(), "no golden file: run once with COMFUSE_UPDATE_GOLDEN=1"
    assert text == path.read_text(), "emitted text changed: if meant, run with COMFUSE_UPDATE_GOLDEN=1"


@pytest.mark.parametrize("name", CHAINS)
def test_layout_is_that_of_clang_format(name: str) -> None:
    tool = shutil.which("clang-format") or shutil.which("clang-format", path=Path(sys.executable).parent)
    if tool is None:
        pytest.skip("clang-format is not installed")
    text = emit_chain(plan_chain(CHAINS[name])).text
    style = "--style={BasedOnStyle: Google, ColumnLimit: 110}"
    formatted = subprocess.run([tool, style], input=text, capture_output=True, text=True, check=True)
    assert formatted.stdout == text


@pytest.mark.parametrize("name", CHAINS)
def test_constants_of_the_kernel_are_those_of_the_plan(name: str) -> None:
    for chosen in chain_candidates(CHAINS[name]):
        if not isinstance(chosen, ChainPlan):
            continue
        source = emit_chain(chosen)
        numbers = cpp_model.parse(source.text).constants
        links, shape = chosen.spec.links, chosen.shape
        first = links[0]
        assert numbers["ChainSchedule"] == [shape.warpgroups, 64, shape.buffers]
        assert numbers["RowsInRegisters" if shape.rows_in_registers else "RowsInShared"] == [first.k]
        weights = {"resident": "Resident", "resident_first": "ResidentFirst", "streamed": "Streamed"}
        assert numbers[weights[chosen.weights.residence]] == [r for r in [chosen.weights.ring] if r]
        assert numbers["TileSlots"] == [chosen.tile_slots]
        assert [numbers["Gemm"][0], *numbers["Further"]] == [link.n for link in links[1:]]
        assert source.text.startswith(f"// {source.name}\n")
        assert f"COMFUSE_EXPORT({source.name}, program::Kernel)\n" in source.text
        sizes = "x".join(str(n) for n in (first.k, *(link.n for link in links)))
        sizes += f"_w{shape.warpgroups}"
        assert re.fullmatch(rf"cf_sm90_chain_[a-z0-9_]+_{sizes}_[0-9a-f]{{8}}", source.name)


def test_names_tell_kernels_apart() -> None:
    plans = [c for chain in CHAINS.values() for c in chain_candidates(chain) if isinstance(c, ChainPlan)]
    assert len({emit_chain(p).name for p in plans}) == len(plans)


def test_what_the_shape_hint_changes_is_not_in_the_text() -> None:
    chain = CHAINS["chain_edge_mlp"]
    few, many = (force_chain(chain, chosen_shape, m=m) for m in (77, 10**6) for chosen_shape in [None])
    assert emit_chain(force_chain(chain, many.shape, m=77)).text == emit_chain(many).text
    assert few.predicted_us < many.predicted_us


def test_description_reads_like_mathematics() -> None:
    def lines(name: str) -> list[str]:
        return describe_chain(normalize_chain(CHAINS[name]))

    assert lines("chain_mlp_gelu") == ["middle = gelu(a @ w0.T + b0)", "y = middle @ w1.T + b1"]
    assert lines("chain_edge_network")[:3] == [
        "middle0 = relu(a @ w0.T + b0)",
        "middle1 = relu(middle0 @ w1.T + b1)",
        "add2 = middle1 @ w2.T + b2",
    ]
    assert lines("chain_gated") == ["middle = silu(a @ w0.T) * (a @ w1.T)", "y = middle @ w2.T"]


# --- what the text computes ---


def float32_constants(chain: ChainSpec) -> ChainSpec:
    """As the text has them: so that the middle comes to the same float64 numbers, and rounds the same."""

    def rounded(link: FusedSpec) -> FusedSpec:
        return dataclasses.replace(
            link,
            nodes=tuple(
                node
                if node.value is None
                else dataclasses.replace(node, value=struct.unpack("<f", struct.pack("<f", node.value))[0])
                for node in link.nodes
            ),
        )

    return ChainSpec(tuple(rounded(link) for link in chain.links))


def run(
    text: str, chain: ChainSpec, gemm: Matrix | list[Matrix], factors: list[Matrix], operands: list
) -> dict:
    """The outputs of an emitted kernel."""
    kernel = cpp_model.parse(text)
    spaces = [o.space for link in chain.links for o in link.operands]
    pairs = list(zip(spaces, operands, strict=True))
    tensors = [v for space, v in pairs if space is not Space.SCALAR]
    scalars = [v for space, v in pairs if space is Space.SCALAR]
    first, last = chain.links[0], chain.last
    products = [gemm] if first.products == 1 else gemm
    middle, handed = cpp_model.run_middle(kernel, first.n, products, tensors, scalars, factors[0])
    assert not handed
    to_element = to_bf16 if first.dtype is DType.BF16 else to_fp16
    for number, factor in enumerate(factors):
        a = [[to_element(x) for x in row] for row in middle]
        result = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in factor] for row in a]
        if number < len(factors) - 1:
            n = chain.links[number + 1].n
            middle = cpp_model.run_between(kernel, number, n, result, tensors, scalars)
    assert len(kernel.further) == len(factors) - 1
    return cpp_model.run(kernel, last.n, [result], tensors, scalars)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_emitted_kernel_computes_the_chain(data: st.DataObject) -> None:
    chain = float32_constants(normalize_chain(data.draw(chains(TAME))))
    gemm, factors, operands = data.draw(chain_arguments(chain))
    source = emit_chain(force_chain(chain))
    outputs = run(source.text, chain, gemm, factors, operands)
    assert sorted(outputs) == list(range(len(chain.last.outputs)))
    for index, expected in enumerate(interpret_chain(chain, gemm, factors, operands)):
        want, got = flat(expected), flat(outputs[index])
        scale = max((abs(v) for v in want if math.isfinite(v)), default=1.0)
        for a, b in zip(got, want, strict=True):
            assert a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-4 * max(scale, 1.0)


@settings(max_examples=100, deadline=None)
@given(chains(max_nodes=30), st.data())
def test_text_is_well_formed_whatever_the_names(chain: ChainSpec, data: st.DataObject) -> None:
    odd = st.sampled_from(["x", "int", "Middle", "EffectsOfMiddle1", "Phase0", "Kernel", "a b", "9", "é"])

    def renamed(link: FusedSpec) -> FusedSpec:
        nodes = tuple(dataclasses.replace(node, name=data.draw(odd)) for node in link.nodes)
        operands = tuple(
            dataclasses.replace(o, name=f"{data.draw(odd)}_{i}") for i, o in enumerate(link.operands)
        )
        return dataclasses.replace(link, nodes=nodes, operands=operands)

    chain = ChainSpec(tuple(renamed(link) for link in chain.links))
    source = emit_chain(force_chain(chain))
    assert source == emit_chain(force_chain(dataclasses.replace(chain)))  # deterministic
    cpp_model.parse(source.text)  # every alias once, and before its use
    assert max(len(line) for line in source.text.splitlines()) <= 110
    assert not re.search(r"[ \t]$|\n\n\n", source.text, re.MULTILINE)
