"""Phase programs: right by interpretation, and as cheap as they should be."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.interpret import interpret, interpret_phases
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes import normalize
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import PhaseProgram, split
from comfuse.generator.spec import DType, FusedSpec, Space

from .strategies import arguments, flat, specs

BF16 = DType.BF16


def program(spec: FusedSpec) -> PhaseProgram:
    return split(normalize(spec))


def kept(p: PhaseProgram) -> list[str | None]:
    return [None if phase.keep is None else p.spec.nodes[phase.keep].name for phase in p.phases]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_phases_compute_what_the_spec_means(data: st.DataObject) -> None:
    spec = normalize(data.draw(specs()))
    gemm, operands = data.draw(arguments(spec))
    direct = interpret(spec, gemm, operands)
    phased = interpret_phases(split(spec), gemm, operands)
    for x, y in zip(direct, phased, strict=True):
        same = [a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(flat(x), flat(y), strict=True)]
        assert all(same)


@settings(max_examples=400, deadline=None)
@given(specs())
def test_structure(spec: FusedSpec) -> None:
    p = program(spec)
    nodes, all_spaces = p.spec.nodes, spaces(p.spec)
    assert sorted(o for phase in p.phases for o in phase.stores) == list(range(len(spec.outputs)))
    assert sorted(p.reductions) == [i for i, node in enumerate(nodes) if node.op in REDUCTIONS]
    content = next(i for i, node in enumerate(nodes) if node.op == "gemm")
    finished: set[int] = set()
    for phase in p.phases:
        assert phase.reductions or phase.stores
        assert phase.content == content
        content = content if phase.keep is None else phase.keep
        assert all_spaces[content] is Space.TILE
        assert list(phase.columns) == sorted(set(phase.columns))
        assert list(phase.lets) == sorted(set(phase.lets))
        for c in phase.columns:
            assert all_spaces[c] is Space.COLUMN
            assert reductions_behind(p.spec, c) <= finished
        finished.update(phase.reductions)


def reductions_behind(spec: FusedSpec, i: int) -> set[int]:
    """Reductions that a per-row node reads, not those behind them."""
    if spec.nodes[i].op in REDUCTIONS:
        return {i}
    return {r for j in spec.nodes[i].inputs for r in reductions_behind(spec, j)}


@settings(max_examples=200, deadline=None)
@given(specs(max_nodes=8))
def test_no_cheaper_choice_of_kept_values_exists(spec: FusedSpec) -> None:
    """Against every path of kept values, by brute force."""
    from comfuse.generator.phases import _Splitter

    splitter = _Splitter(normalize(spec))
    if splitter.count > 3:
        return

    def best(phase: int, content: int) -> float:
        if phase == splitter.count - 1:
            cost = splitter._step_cost(phase, content, content)
            return math.inf if cost is None else cost
        found = math.inf
        for i, node in enumerate(splitter.spec.nodes):
            tile = splitter.spaces[i] is Space.TILE and (node.op in ELEMENTWISE or i == content)
            if tile and splitter.level[i] <= phase:
                cost = splitter._step_cost(phase, content, i)
                if cost is not None:
                    found = min(found, cost + best(phase + 1, i))
        return found

    assert math.isclose(splitter.program().cost, best(0, splitter.gemm))


def test_layernorm_keeps_its_input() -> None:
    p = program(catalog.layernorm(1024, 1024, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16))
    assert kept(p) == ["x", None]
    assert [len(phase.tiles) for phase in p.phases] == [1, 0]
    assert [len(phase.columns) for phase in p.phases] == [0, 2]


def test_bare_layernorm_keeps_nothing() -> None:
    """The accumulators hold what is normalised."""
    assert kept(program(catalog.layernorm(1024, 1024, BF16))) == [None, None]


def test_residual_after_the_norm_is_read_in_the_last_phase() -> None:
    p = program(catalog.rmsnorm(64, 64, BF16, residual=BF16, residual_position="after"))
    assert [len(phase.tiles) for phase in p.phases] == [0, 1]


def test_softmax_keeps_the_exponentials() -> None:
    p = program(catalog.softmax(64, 64, BF16, mask=BF16))
    assert kept(p) == ["masked", "e", None]


def test_gemma_block_is_three_phases_and_stores_early() -> None:
    p = program(catalog.gemma_block(64, 64, BF16))
    assert kept(p) == [None, "h", None]
    assert [phase.stores for phase in p.phases] == [(), (0,), (1,)]


def test_a_cheap_value_is_recomputed_when_a_dear_one_is_kept() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.op("add", b.gemm(), b.load("residual", Space.TILE, BF16), name="x")
    peak = b.op("row_max", x, name="peak")
    relu = b.op("relu", x, name="r")
    b.output("y", b.op("mul", b.op("sub", relu, peak), x), BF16)
    p = program(b.spec())
    assert kept(p) == ["x", None]
    assert "r is recomputed" not in " ".join(p.decisions)  # it is first computed in phase 1


def test_two_independent_values_force_a_second_load() -> None:
    b = SpecBuilder(64, 64, BF16)
    acc, residual = b.gemm(), b.load("residual", Space.TILE, BF16)
    x = b.op("add", acc, residual, name="x")
    peak = b.op("row_max", b.op("exp", x), name="peak")
    b.output("y", b.op("mul", b.op("sub", acc, peak), b.op("mul", x, residual)), BF16)
    p = program(b.spec())
    assert "residual is loaded again in phase 1" in p.decisions


def test_column_outputs_and_vectors() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.op("mul", b.gemm(), b.load("scale", Space.COLUMN, BF16), name="x")
    b.output("peak", b.op("row_max", x, name="peak"), DType.FP32)
    p = program(b.spec())
    assert [phase.stores for phase in p.phases] == [(), (0,)]
    assert [len(phase.columns) for phase in p.phases] == [1, 1]


def test_a_shared_per_row_value_is_computed_once() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    root = b.op("sqrt", b.op("row_sumsq", x), name="root")
    y = b.op("add", b.op("mul", x, b.op("exp", root, name="e")), b.op("log", root, name="l"))
    b.output("y", y, BF16)
    p = program(b.spec())
    assert [p.spec.nodes[c].name for c in p.phases[1].columns] == ["root", "e", "l"]


def test_many_phases() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    for i in range(6):
        x = b.op("mul", x, b.op("rsqrt", b.op("row_sumsq", x)), name=f"x{i}")
    b.output("y", x, BF16)
    p = program(b.spec())
    assert len(p.phases) == 7
    assert len(p.reductions) == 6
