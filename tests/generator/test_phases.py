"""Phase programs: right by interpretation, and as cheap as they should be."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import PlanError
from comfuse.generator.interpret import interpret, interpret_phases
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes import normalize
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import PhaseProgram, axis, moves_rows, split
from comfuse.generator.phases.levels import levels
from comfuse.generator.phases.reads import values_of_tiles
from comfuse.generator.phases.split import Splitter
from comfuse.generator.spec import DType, FusedSpec, Operand, Output, Space

from .strategies import arguments, flat, specs

BF16, FP32 = DType.BF16, DType.FP32


def program(spec: FusedSpec) -> PhaseProgram:
    return split(normalize(spec))


def names(p: PhaseProgram, outputs: tuple[int, ...]) -> list[str]:
    return [p.spec.outputs[o].name for o in outputs]


def kept(p: PhaseProgram) -> list[str | None]:
    return [None if phase.keep is None else p.spec.nodes[phase.keep].name for phase in p.phases]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_phases_compute_what_the_spec_means(data: st.DataObject) -> None:
    spec = normalize(data.draw(specs(feedback=data.draw(st.booleans()))))
    assume(refusal_of(spec) is None)
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
    behind = (*(p.row_tail.stores if p.row_tail else ()), *p.column_stores, *p.full_stores)
    stored = [o for phase in p.phases for o in phase.stores]
    assert sorted((*stored, *behind)) == list(range(len(spec.outputs)))
    assert sorted(p.reductions) == [i for i, node in enumerate(nodes) if node.op in REDUCTIONS]
    content = next(i for i, node in enumerate(nodes) if node.op == "gemm" and node.product == 0)
    readable: set[int] = set()  # by tiles
    for phase in p.phases:
        assert phase.reductions or phase.stores or phase is p.phases[0]
        assert phase.content == content
        content = content if phase.keep is None else phase.keep
        assert all_spaces[content] is Space.TILE
        for values, space in ((phase.columns, Space.COLUMN), (phase.groups, Space.GROUP)):
            assert list(values) == sorted(set(values))
            for i in values:
                assert all_spaces[i] is space
                assert reductions_behind(p.spec, i) <= readable
        assert list(phase.lets) == sorted(set(phase.lets))
        rows = {r for r in phase.reductions if axis(p.spec, r) == "row"}
        assert not phase.waits or rows
        readable |= rows if phase.waits else set()
        readable |= {r for r in phase.reductions if axis(p.spec, r) == "group"}
    assert not p.phases[-1].waits
    for stores, kinds in (
        (p.row_tail.stores if p.row_tail else (), {"row"}),
        (p.column_stores, {"col"}),
        (p.full_stores, {"full"}),
    ):
        for o in stores:
            read = reductions_behind(p.spec, spec_node := p.spec.outputs[o].node)
            assert {axis(p.spec, r) for r in read} == kinds, nodes[spec_node].name
    if p.row_tail is not None:
        assert all(reductions_behind(p.spec, p.spec.outputs[o].node) - readable for o in p.row_tail.stores)


def reductions_behind(spec: FusedSpec, i: int) -> set[int]:
    """Reductions that a value reads, not those behind them."""
    if spec.nodes[i].op in REDUCTIONS:
        return {i}
    return {r for j in spec.nodes[i].inputs for r in reductions_behind(spec, j)}


@settings(max_examples=200, deadline=None)
@given(specs(max_nodes=8))
def test_no_cheaper_choice_of_kept_values_exists(spec: FusedSpec) -> None:
    """Against every path of kept values, by brute force."""
    spec = normalize(spec)
    splitter = Splitter(spec, levels(spec))
    if splitter.count > 3:
        return

    def best(phase: int, content: int) -> float:
        if phase == splitter.count - 1:
            cost = splitter.step_cost(phase, content, content)
            return math.inf if cost is None else cost
        found = math.inf
        for i, node in enumerate(splitter.spec.nodes):
            tile = splitter.spaces[i] is Space.TILE and (node.op in ELEMENTWISE or i == content)
            if tile and splitter.level[i] <= phase:
                cost = splitter.step_cost(phase, content, i)
                if cost is not None:
                    found = min(found, cost + best(phase + 1, i))
        return found

    assert math.isclose(splitter.program().cost, best(0, splitter.gemm))


def refusal_of(spec: FusedSpec) -> PlanError | None:
    try:
        program(spec)
    except PlanError as e:
        return e
    return None


@settings(max_examples=200, deadline=None)
@given(specs(feedback=True))
def test_what_reads_all_tiles_too_early_is_refused(spec: FusedSpec) -> None:
    """No phase reads a full reduction, or a column one that no earlier phase has waited for."""
    refusal = refusal_of(spec)
    if refusal is not None:
        assert refusal.node in {node.name for node in normalize(spec).nodes}
        assert "generator.stages" in refusal.reason
        return
    p = program(spec)
    read_anywhere = False
    waited_for: set[int] = set()
    for phase in p.phases:
        targets = [p.spec.nodes[r].inputs[0] for r in phase.reductions]
        targets += [p.spec.outputs[o].node for o in phase.stores]
        targets += [] if phase.keep is None else [phase.keep]
        evaluated = values_of_tiles(p.spec, phase.content, tuple(targets))
        read = {i for i in evaluated if p.spec.nodes[i].op in REDUCTIONS}
        assert {axis(p.spec, r) for r in read} <= {"col"}
        assert read <= waited_for
        read_anywhere |= bool(read)
        columns = {r for r in phase.reductions if axis(p.spec, r) == "col"}
        assert columns or not phase.columns_wait
        waited_for |= columns if phase.columns_wait else set()
    assert p.columns_wait == read_anywhere


def batch_norm(b: SpecBuilder, x: int, name: str = "") -> int:
    stats = b.op("col_welford", x, name=f"stats{name}")
    mean, var = b.field(stats, "mean", name=f"mean{name}"), b.field(stats, "var", name=f"var{name}")
    return b.op("mul", b.op("sub", x, mean), b.op("rsqrt", var, name=f"rstd{name}"), name=f"y{name}")


def test_batch_norm_is_two_phases() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.op("add", b.gemm(), b.load("residual", Space.TILE, BF16), name="x")
    y = batch_norm(b, x)
    b.output("y", y, BF16)
    b.output("peak", b.op("col_max", y, name="peak"), DType.FP32)  # stored only
    p = program(b.spec())
    assert kept(p) == ["x", None]
    assert [phase.columns_wait for phase in p.phases] == [True, True]
    assert not p.waits
    assert [phase.stores for phase in p.phases] == [(), (0,)]
    assert p.column_stores == (1,)
    exchanged = "the tiles of a block of columns exchange partials and wait for each other's"
    assert f"stats, peak: {exchanged}" in p.decisions
    assert "peak: by the first tile of a block of columns" in p.decisions


def test_each_batch_norm_of_a_chain_is_a_phase_more() -> None:
    b = SpecBuilder(64, 64, BF16)
    b.output("y", batch_norm(b, b.op("relu", batch_norm(b, b.gemm(), "1")), "2"), BF16)
    p = program(b.spec())
    assert [phase.columns_wait for phase in p.phases] == [True, True, False]


def test_rows_and_columns_wait_side_by_side() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    both = b.op("mul", b.op("sub", x, b.op("col_max", x)), b.op("row_max", x))
    b.output("y", both, BF16)
    p = program(b.spec())
    assert [(phase.waits, phase.columns_wait) for phase in p.phases] == [(True, True), (False, False)]


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


def test_softmax_is_one_exchange() -> None:
    p = program(catalog.softmax(64, 64, BF16, mask=BF16))
    assert kept(p) == ["masked", None]
    assert [phase.waits for phase in p.phases] == [True, False]


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


# --- groups, products, layouts ---


def test_values_of_groups() -> None:
    """RMSNorm a head, with a scale a row: one value a row and group, the scale a column of the phase."""
    b = SpecBuilder(256, 64, BF16, group=64)
    x = b.gemm()
    scale = b.load("row_scale", Space.COLUMN, FP32)
    squares = b.op("group_sumsq", x, name="squares")
    rrms = b.op("mul", b.op("rsqrt", squares), scale, name="rrms")
    b.output("y", b.op("mul", x, rrms), BF16)
    b.output("rrms", rrms, FP32)
    p = program(b.spec())
    assert [[p.spec.nodes[i].name for i in phase.groups] for phase in p.phases] == [[], ["rrms"]]
    assert [[p.spec.nodes[i].name for i in phase.columns] for phase in p.phases] == [[], ["row_scale"]]
    assert names(p, p.phases[1].stores) == ["y", "rrms"]
    assert not p.waits
    assert "squares runs over groups of 64 columns, each within one tile" in p.decisions


def test_the_second_product_is_always_at_hand() -> None:
    b = SpecBuilder(64, 64, BF16, products=2)
    gate, up = b.gemm(0, "gate"), b.gemm(1, "up")
    h = b.op("mul", b.op("silu", gate), up, name="h")
    norm = b.op("mul", h, b.op("rsqrt", b.op("row_sumsq", h)))
    b.output("y", b.op("add", norm, up), BF16)
    p = program(b.spec())
    assert kept(p) == ["h", None]
    assert "gate and up share A and accumulate side by side" in p.decisions


def test_the_first_product_is_lost_once_a_value_is_kept() -> None:
    """With both needed behind the norm, the dear value is recomputed."""
    b = SpecBuilder(64, 64, BF16, products=2)
    gate, up = b.gemm(0, "gate"), b.gemm(1, "up")
    h = b.op("mul", b.op("silu", gate), up, name="h")
    b.output("y", b.op("mul", b.op("mul", h, gate), b.op("rsqrt", b.op("row_sumsq", h))), BF16)
    p = program(b.spec())
    assert kept(p)[0] != "h"


def test_indices_are_free() -> None:
    b = SpecBuilder(64, 64, BF16)
    x, m, n = b.gemm(), b.row_index(), b.column_index()
    b.output("y", b.op("where", b.op("ge", m, n), x, b.const(-math.inf)), BF16)
    b.output("rows", m, DType.INT32)
    p = program(b.spec())
    assert [p.spec.nodes[i].op for i in p.phases[0].columns] == ["row_index"]  # for its store alone
    assert not p.phases[0].tiles


@pytest.mark.parametrize(
    "n, dtype, strided, whole",
    [
        (64, BF16, False, True),
        (64, BF16, True, False),
        (100, BF16, False, False),
        (100, FP32, False, False),  # rows start well, but a thread holds eight columns
        (8, FP32, False, True),
        (8, DType.INT8, False, False),
        (16, DType.INT8, False, True),
        (8, DType.INT64, False, True),
        (1, BF16, False, False),
    ],
)
def test_which_tiles_move_in_whole_rows(n: int, dtype: DType, strided: bool, whole: bool) -> None:
    b = SpecBuilder(n, 64, BF16)
    b.output("y", b.gemm(), BF16)
    assert moves_rows(b.spec(), Operand("x", Space.TILE, dtype, strided)) is whole
    assert moves_rows(b.spec(), Output("x", 0, dtype, strided)) is whole


def test_how_tiles_lie_is_said() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.op("add", b.gemm(), b.load("position", Space.TILE, BF16, strided=True))
    b.output("y", x, BF16, heads=32)
    said = program(b.spec()).decisions
    how = "in runs of 8 columns where a launch's strides allow it"
    assert f"position: read by the threads from global memory, {how}" in said
    assert f"y: stored at any strides, {how}" in said


def test_a_phase_loads_no_tile_that_another_has_reduced() -> None:
    b = SpecBuilder(8, 64, DType.BF16)
    t, total = b.load("t", Space.TILE, DType.BF16), b.op("row_sum", b.gemm())
    b.output("y", b.op("add", b.op("col_sum", t), total), DType.BF16)
    assert [phase.tiles for phase in split(normalize(b.spec())).phases] == [(0,), ()]
