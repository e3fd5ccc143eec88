"""Plans: what is chosen, what is refused and why, what it occupies."""

from __future__ import annotations

import dataclasses
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import PlanError, SpecError
from comfuse.generator.ops import AXES
from comfuse.generator.passes import normalize
from comfuse.generator.phases import split
from comfuse.generator.plan import (
    GPUS,
    SCHEDULES,
    SHAPES,
    KernelPlan,
    Refusal,
    TileShape,
    candidates,
    candidates_to_measure,
    cost,
    force,
    memory,
    plan,
    shapes,
)
from comfuse.generator.plan import constraints as rules
from comfuse.generator.spec import DType, FusedSpec, Major, Node, Output, Space
from comfuse.generator.stages import stages

from .programs import GOLDEN, ROWS
from .strategies import specs

BF16, FP32 = DType.BF16, DType.FP32
INCLUDE = Path(__file__).parents[2] / "csrc" / "include" / "comfuse"


def layernorm(n: int, k: int) -> FusedSpec:
    return catalog.layernorm(n, k, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16)


def refusals(spec: FusedSpec) -> dict[TileShape, Refusal]:
    return {c.shape: c for c in candidates(spec) if isinstance(c, Refusal)}


def plans(spec: FusedSpec) -> list[KernelPlan]:
    return [c for c in candidates(spec) if isinstance(c, KernelPlan)]


# --- choice ---------------------------------------------------------------------------------------------

# Measured on an H200, bf16, clusters of two, us: M, N, K; LayerNorm by pingpong 128x128, pingpong2 128x128,
# cooperative 128x256; the GEMM alone by pingpong 128x128, cooperative 128x256.
MEASURED = [
    (16384, 768, 768, (43.2, 43.2, None), (30.1, None)),
    (16384, 768, 3072, (114.1, 115.0, None), (102.2, None)),
    (16384, 1024, 1024, (63.5, 64.7, 67.0), (48.6, 53.1)),
    (16384, 1024, 4096, (192.7, 194.4, 189.1), (177.2, 176.9)),
    (8192, 2048, 2048, (104.5, 105.7, 106.6), (89.9, 93.3)),
    (8192, 4096, 4096, (398.4, 402.2, 379.5), (369.7, 358.6)),
    (327680, 512, 512, (390.0, 380.0, None), (249.6, 283.8)),
    (65536, 256, 256, (32.3, 30.7, None), (22.6, None)),
]
NORM_SHAPES = [
    TileShape(*s, 2) for s in (("pingpong", 128, 128), ("pingpong2", 128, 128), ("cooperative", 128, 256))
]
GEMM_SHAPES = [NORM_SHAPES[0], NORM_SHAPES[2]]


@pytest.mark.parametrize("m, n, k, norm, gemm", MEASURED)
def test_the_fastest_measured_shape_is_chosen(
    m: int, n: int, k: int, norm: tuple[float | None, ...], gemm: tuple[float | None, ...]
) -> None:
    times = {s: t for s, t in zip(NORM_SHAPES, norm, strict=True) if t is not None}
    chosen = plan(layernorm(n, k), "h200", m)
    assert chosen.shape == min(times, key=times.__getitem__)
    assert chosen.floor_us < times[chosen.shape]


@pytest.mark.parametrize("m, n, k, norm, gemm", MEASURED)
def test_predictions_are_near_the_measurements(
    m: int, n: int, k: int, norm: tuple[float | None, ...], gemm: tuple[float | None, ...]
) -> None:
    cases = ((layernorm(n, k), NORM_SHAPES, norm), (catalog.linear(n, k, BF16), GEMM_SHAPES, gemm))
    for spec, measured, times in cases:
        for shape, time in zip(measured, times, strict=True):
            if time is not None:
                assert force(spec, shape, "h200", m).predicted_us == pytest.approx(time, rel=0.085)


def test_clusters_share_rows_wherever_there_are_two_tiles() -> None:
    for n in (256, 768, 1024, 4096):
        assert plan(layernorm(n, 1024)).cluster_n == 2
    for n in (64, 128):
        assert plan(layernorm(n, 1024)).cluster_n == 1


def test_large_m_is_assumed_without_a_hint() -> None:
    spec = layernorm(1024, 1024)
    hinted = plan(spec, "h200", cost.LARGE_M)
    assert plan(spec) == hinted


def test_few_rows_get_narrow_tiles() -> None:
    assert plan(layernorm(4096, 4096), "h200", 64).tile_n == 64


def test_narrow_results_get_narrow_tiles() -> None:
    for n in (8, 64):
        assert plan(layernorm(n, 256)).tile_n == 64


def test_scope() -> None:
    assert plan(catalog.linear(4096, 4096, BF16)).scope == "none"
    assert plan(layernorm(64, 256)).scope == "tile"
    assert plan(layernorm(4096, 256)).scope == "row_group"
    for p in plans(layernorm(256, 256)):
        tiles = p.shape.tiles_n(256)
        wanted = "tile" if tiles == 1 else "cluster" if tiles == p.cluster_n else "row_group"
        assert p.scope == wanted


def test_plan_normalises() -> None:
    spec = layernorm(1024, 1024)
    dead = dataclasses.replace(spec, nodes=(*spec.nodes, Node("dead", "exp", (0,))))
    assert plan(dead) == plan(spec)


def test_unknown_gpu_and_bad_hint() -> None:
    with pytest.raises(PlanError, match="unknown GPU 'a100', known: h200, h100"):
        plan(layernorm(64, 64), "a100")
    with pytest.raises(PlanError, match="m must be at least 1, got 0"):
        plan(layernorm(64, 64), "h200", 0)
    with pytest.raises(SpecError):
        plan(dataclasses.replace(layernorm(64, 64), outputs=()))


def test_decisions_say_where_values_live() -> None:
    said = plan(layernorm(1024, 1024)).decisions
    assert "x is kept in the accumulators from phase 0 on" in said
    assert any("8 tiles of a row block exchange partials" in line for line in said)


def test_forced_shapes() -> None:
    spec = layernorm(4096, 512)
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    for candidate in candidates(spec):
        if isinstance(candidate, KernelPlan):
            assert force(spec, candidate.shape) == candidate
        else:
            with pytest.raises(PlanError, match=re.escape(candidate.reason)):
                force(spec, candidate.shape)
    with pytest.raises(PlanError, match="pingpong 128x32x64, cluster 1x1 is none of the planner's"):
        force(spec, TileShape("pingpong", 128, 32, 1))


@pytest.mark.parametrize(
    "schedule, tile_n, stages, slots",
    [
        ("pingpong", 128, 6, 8),
        ("pingpong2", 128, 6, 4),
        ("cooperative", 224, 4, 6),
        ("cooperative", 256, 3, 8),
    ],
)
def test_shared_memory_is_divided(schedule: str, tile_n: int, stages: int, slots: int) -> None:
    p = force(layernorm(1024, 1024), TileShape(schedule, 128, tile_n, 2))
    assert (p.stages, p.tile_slots) == (stages, slots)
    # By hand: K blocks, slots of one or two rings, three vectors a team, and barriers.
    rings, teams = (1 if schedule == "pingpong" else 2), (1 if schedule == "cooperative" else 2)
    blocks = stages * (128 + tile_n) * 64 * 2
    barriers = 8 * 2 * (stages + rings * slots + teams)
    assert p.shared_bytes == blocks + rings * slots * 64 * 32 * 2 + teams * 3 * tile_n * 2 + barriers


# --- constraints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec, reason",
    [
        (layernorm(64, 100), "K = 100 must be a multiple of 8 where rows of A or B are contiguous along K"),
        (layernorm(64, 4), "K = 4 must be a multiple of 8"),
        (layernorm(132 * 256 + 8, 64), "N <= 33792 fits"),
    ],
)
def test_refused_programs(spec: FusedSpec, reason: str) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)):
        plan(spec)


def wide(operands: int = 0, scalars: int = 0, outputs: int = 1) -> FusedSpec:
    b = SpecBuilder(64, 64, BF16)
    y = b.gemm()
    for i in range(operands):
        y = b.op("add", y, b.load(f"b{i}", Space.ROW, BF16))
    for i in range(scalars):
        y = b.op("mul", y, b.load(f"s{i}", Space.SCALAR))
    for i in range(outputs):
        b.output(f"y{i}", y, BF16)
    return b.spec()


@pytest.mark.parametrize(
    "most, beyond, reason",
    [
        (wide(operands=16), wide(operands=17), "17 tensor operands, at most 16"),
        (wide(scalars=16), wide(scalars=17), "17 scalars, at most 16"),
        (wide(outputs=8), wide(outputs=9), "9 outputs, at most 8"),
    ],
)
def test_limits_of_the_abi(most: FusedSpec, beyond: FusedSpec, reason: str) -> None:
    plan(most)
    with pytest.raises(PlanError, match=reason):
        plan(beyond)


def test_each_shape_constraint_has_a_case() -> None:
    """Every constraint refuses something, and says so under its own name."""
    tiles = SpecBuilder(64, 64, BF16)
    y = tiles.gemm()
    for i in range(8):
        y = tiles.op("add", y, tiles.load(f"t{i}", Space.TILE, FP32))
    tiles.output("y", y, BF16)
    columns = SpecBuilder(4096, 64, BF16)
    y = columns.gemm()
    for i in range(16):
        y = columns.op("add", y, columns.load(f"c{i}", Space.COLUMN, BF16))
    columns.output("y", y, BF16)
    huge = catalog.linear(1 << 20, 64, BF16)
    groups = SpecBuilder(256, 64, BF16, group=128)
    groups.output("peak", groups.op("group_max", groups.gemm()), FP32)
    centred = SpecBuilder(64, 64, BF16)
    acc = centred.gemm()
    centred.output("y", centred.op("sub", acc, centred.op("col_sum", acc)), BF16)
    cases = [layernorm(64, 64), layernorm(33792, 64), tiles.spec(), columns.spec(), huge, groups.spec()]
    cases.append(centred.spec())
    contiguous_along_n = SpecBuilder(64, 64, BF16, b_major=Major.MN)
    contiguous_along_n.output("y", contiguous_along_n.gemm(), BF16)
    cases.append(contiguous_along_n.spec())
    seen = {r.constraint for spec in cases for r in refusals(spec).values()}
    along_m = (GOLDEN[name] for name in ("attention_scores", "column_major_weight"))
    found = [c for spec in along_m for c in candidates_to_measure(spec)]
    seen |= {c.constraint for c in found if isinstance(c, Refusal)}
    assert seen == {check.__name__ for check in rules.SHAPE_CONSTRAINTS}


def test_row_group_limit_is_exact() -> None:
    for shape in SHAPES:
        most = 132 * shape.tile_n
        fits, beyond = catalog.rmsnorm(most, 64, BF16), catalog.rmsnorm(most + 32, 64, BF16)
        assert shape not in refusals(fits)
        assert refusals(beyond)[shape].constraint == "row_group_is_resident"


def test_no_row_group_limit_without_a_reduction() -> None:
    assert plan(catalog.linear(1 << 20, 64, BF16)).scope == "none"


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(list(GPUS)))
def test_plans_keep_their_budgets(data: st.DataObject, gpu: str) -> None:
    n, group = data.draw(
        st.sampled_from(
            [
                (8, 4),
                (64, 32),
                (200, 100),
                (768, 64),
                (1000, 8),
                (1152, 128),
                (4104, 8),
                (5376, 256),
                (100, 50),
            ]
        )
    )
    axes = tuple(AXES) if group in rules.GROUPS else ("row", "col", "full")
    spec = data.draw(specs(max_nodes=20, n=n, group=group, axes=axes, feedback=data.draw(st.booleans())))
    try:
        found = candidates(spec, gpu, 1000)
    except PlanError:
        with suppress(PlanError):  # what no stages can run either
            assume(len(stages(spec)) > 1)
        return
    assert tuple(c.shape for c in found) == shapes(spec)
    for c in found:
        if isinstance(c, Refusal):
            assert c.reason
            assert c.constraint
            continue
        shape = c.shape
        assert spec.products * shape.tile_n <= 320
        assert c.stages >= memory.MIN_STAGES
        assert c.shared_bytes == memory.shared_bytes(c.program, shape, c.stages, c.tile_slots)
        assert c.shared_bytes <= GPUS[gpu].shared_bytes
        assert c.registers <= SCHEDULES[c.schedule].registers
        assert c.tile_slots >= memory.needed_slots(c.program, shape)
        assert (c.tile_slots > 0) == any(memory.streamed(c.spec, phase) for phase in c.program.phases)
        assert (c.max_m is None) != c.program.columns_wait
        assert c.max_m is None or c.max_m >= 1000
        assert 0 < c.floor_us <= c.predicted_us
        candidate = rules.Candidate(c.spec, c.program, shape, c.stages, c.tile_slots, GPUS[gpu], 1000)
        assert not any(check(candidate) for check in rules.SHAPE_CONSTRAINTS)
    usable = [c for c in found if isinstance(c, KernelPlan)]
    if not usable:
        with pytest.raises(PlanError, match="no tile shape fits"):
            plan(spec, gpu, 1000)
        return
    assert plan(spec, gpu, 1000) in usable
    assert plan(spec, gpu, 1000).predicted_us == min(c.predicted_us for c in usable)


def test_every_golden_program_has_several_plans() -> None:
    for name, spec in GOLDEN.items():
        found = [c for c in candidates(spec, m=ROWS.get(name)) if isinstance(c, KernelPlan)]
        assert len(found) >= 4, name


def test_stages_yield_to_the_slots_that_a_phase_needs() -> None:
    b = SpecBuilder(1024, 1024, BF16)
    y = b.gemm()
    for i in range(3):
        y = b.op("add", y, b.load(f"t{i}", Space.TILE, FP32))
    b.output("y", y, BF16)
    for p in plans(b.spec()):
        assert p.tile_slots >= memory.needed_slots(p.program, p.shape)


# --- the device side ------------------------------------------------------------------------------------


def constant(file: str, name: str) -> int:
    found = re.search(rf"\b{name}\b\s*=?\s*(\d+)", (INCLUDE / file).read_text())
    assert found, f"{name} is not in {file}"
    return int(found[1])


def test_limits_are_those_of_the_headers() -> None:
    assert constant("abi.h", "CF_MAX_OPERANDS") == rules.MAX_OPERANDS
    assert constant("abi.h", "CF_MAX_OUTPUTS") == rules.MAX_OUTPUTS
    assert constant("abi.h", "CF_MAX_SCALARS") == rules.MAX_SCALARS
    assert constant("abi.h", "CF_MAX_FACTORS") == rules.MAX_FACTORS
    assert constant("sm90/kernel.hpp", "kSlotBytes") == memory.PIECE_ROWS
    assert constant("sm90/fragment_layout.hpp", "kFragmentColumns") == memory.PIECE_COLUMNS
    assert f"Waits ? 1 : {cost.BAND} / ClusterM;" in (INCLUDE / "sm90" / "scheduler.hpp").read_text()
    registers = re.search(
        r"kConsumerRegisters = kConsumers == 2 \? (\d+) : (\d+);",
        (INCLUDE / "sm90" / "kernel.hpp").read_text(),
    )
    assert registers
    for schedule in SCHEDULES.values():
        assert int(registers[1 if schedule.warpgroups == 2 else 2]) == schedule.registers


def test_traffic_counts_every_tensor_once() -> None:
    spec = normalize(GOLDEN["row_statistics"])
    m, n, k = 1000, 200, 512
    expected = 2 * (m + n) * k + 4 * m + 4 * n + 2 * m * n + 4 * m * n + 4 * m + 4 * m
    assert cost.traffic(spec, m) == expected


def test_output_of_the_gemm_alone() -> None:
    spec = FusedSpec(64, 64, BF16, (), (Node("acc", "gemm"),), (Output("y", 0, BF16),))
    assert len(split(normalize(spec)).phases) == 1
    assert plan(spec).tile_slots == 0


def test_fewer_processors_hold_narrower_rows() -> None:
    """What one GPU runs in one kernel, a smaller one refuses."""
    wide = layernorm(132 * 160, 64)
    assert plan(wide, "h100").scope == "row_group"
    with pytest.raises(PlanError, match="spans more tiles than can run at once"):
        plan(wide, "h100:60")
    assert plan(layernorm(1024, 64), "h100:60").scope == "row_group"


@pytest.mark.parametrize("name", ["h100:", "h100:0", "h100:many", "b200:148"])
def test_gpu_names_that_mean_nothing(name: str) -> None:
    with pytest.raises(PlanError, match="GPU"):
        plan(layernorm(1024, 64), name)
