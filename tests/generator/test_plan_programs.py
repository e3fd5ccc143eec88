"""Plans of programs with two products, groups, tails, other layouts and odd sizes."""

from __future__ import annotations

import re

import pytest

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import PlanError
from comfuse.generator.kernels import kernels
from comfuse.generator.passes import normalize
from comfuse.generator.plan import (
    GPUS,
    KernelPlan,
    TileShape,
    candidates,
    cost,
    force,
    memory,
    plan,
    row_limits,
)
from comfuse.generator.plan.constraints import GROUPS
from comfuse.generator.spec import DType, FusedSpec, Major, Space
from comfuse.generator.stages import stages, whole

BF16, FP32 = DType.BF16, DType.FP32


def plans(spec: FusedSpec) -> list[KernelPlan]:
    return [c for c in candidates(spec) if isinstance(c, KernelPlan)]


# --- two products ---


def gated(n: int, k: int) -> FusedSpec:
    b = SpecBuilder(n, k, BF16, products=2)
    b.output("y", b.op("mul", b.op("silu", b.gemm(0, "gate")), b.gemm(1, "up")), BF16)
    return b.spec()


def test_two_products_share_a_tile_of_at_most_256_columns() -> None:
    found = plans(gated(11008, 4096))
    assert {(p.schedule, p.tile_n) for p in found} == {
        ("pingpong", 64),
        ("pingpong2", 64),
        ("cooperative", 128),
    }


def test_two_products_hold_two_accumulators() -> None:
    one = force(catalog.linear(1024, 1024, BF16), TileShape("cooperative", 128, 128, 2))
    two = force(gated(1024, 1024), TileShape("cooperative", 128, 128, 2))
    assert two.registers == one.registers + 64
    assert memory.stage_bytes(two.spec, two.shape) == (128 + 2 * 128) * 64 * 2


def test_two_products_are_twice_the_work() -> None:
    one, two = catalog.linear(4096, 4096, BF16), gated(4096, 4096)
    assert plan(two, "h200", 8192).floor_us == pytest.approx(2 * plan(one, "h200", 8192).floor_us)
    assert plan(two, "h200", 8192).predicted_us > 1.7 * plan(one, "h200", 8192).predicted_us


def test_traffic_counts_both_factors_and_every_kind_of_output() -> None:
    b = SpecBuilder(256, 512, BF16, products=2, group=64)
    x = b.op("mul", b.gemm(0), b.gemm(1))
    b.output("amax", b.op("group_max", x), FP32)
    b.output("sums", b.op("col_sum", x), FP32)
    b.output("total", b.op("full_sum", x), FP32)
    m = 1000
    assert cost.traffic(b.spec(), m) == 2 * (m + 2 * 256) * 512 + 4 * m * 4 + 4 * 256


def test_tiles_that_nobody_waits_for_go_in_bands() -> None:
    """A wide B passes through memory once for 16 row blocks, not once for each wave of tiles."""
    tail = SpecBuilder(32000, 4096, BF16)
    tail.output("total", tail.op("row_sum", tail.gemm()), FP32)
    waits = SpecBuilder(32000, 4096, BF16)
    x = waits.gemm()
    waits.output("y", waits.op("sub", x, waits.op("row_max", x)), BF16)
    shape = TileShape("cooperative", 128, 256, 2)
    fast, slow = (force(b.spec(), shape, "h200", 8192) for b in (tail, waits))
    b_once = 2e6 * 32000 * 4096 / GPUS["h200"].bandwidth
    assert fast.predicted_us < 3400  # measured: 3377
    assert slow.predicted_us > 50 * b_once


# --- groups ---


def grouped(n: int, group: int, products: int = 1) -> FusedSpec:
    b = SpecBuilder(n, 64, BF16, group=group, products=products)
    x = b.gemm()
    if products == 2:
        x = b.op("mul", x, b.gemm(1))
    b.output("y", b.op("mul", x, b.op("rsqrt", b.op("group_sumsq", x, name="squares"))), BF16)
    return b.spec()


def test_groups_are_of_whole_pieces_of_some_tile() -> None:
    assert GROUPS == (32, 64, 96, 128, 160, 192, 224, 256, 288, 320)


@pytest.mark.parametrize("group", GROUPS)
def test_groups_lie_within_tiles(group: int) -> None:
    assert plan(grouped(3 * group, group)).tile_n % group == 0
    for c in candidates(grouped(16 * group, group)):
        if isinstance(c, KernelPlan):
            assert c.tile_n % group == 0
            assert c.scope == "none"
        elif c.shape.tile_n % group:
            assert c.constraint == "groups_are_in_tiles"


@pytest.mark.parametrize(
    "spec, reason",
    [
        (
            grouped(960, 80),
            "squares: groups of 80 columns of N = 960; groups of 32, 64, 96, 128, 160, 192, 224, 256, 288,"
            " 320 are possible where they divide N",
        ),
        (grouped(1024, 16), "squares: groups of 16 columns"),
        (grouped(1024, 256, products=2), "squares: groups of 256 columns do not fit tiles of 128"),
    ],
)
def test_groups_that_no_tile_holds(spec: FusedSpec, reason: str) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)):
        plan(spec)


def test_a_group_size_without_a_group_reduction_is_of_no_account() -> None:
    b = SpecBuilder(96, 64, BF16, group=3)
    b.output("y", b.gemm(), BF16)
    plan(b.spec())


# --- tails ---


def test_a_row_tail_has_no_limit_on_n() -> None:
    """Logits of a vocabulary wider than all tiles that can run at once."""
    b = SpecBuilder(1 << 20, 64, BF16)
    b.output("lse", b.field(b.op("row_softmax", b.gemm()), "lse"), FP32)
    p = plan(b.spec())
    assert p.scope == "row_tail"
    assert any("merges the partials of all" in line for line in p.decisions)
    narrow = SpecBuilder(64, 64, BF16)
    narrow.output("lse", narrow.field(narrow.op("row_softmax", narrow.gemm()), "lse"), FP32)
    assert plan(narrow.spec()).scope == "tile"


def test_a_tail_beside_feedback_is_limited_by_the_feedback() -> None:
    def spec(n: int) -> FusedSpec:
        b = SpecBuilder(n, 64, BF16)
        x = b.gemm()
        y = b.op("mul", x, b.op("rsqrt", b.op("row_sumsq", x)), name="y")
        b.output("y", y, BF16)
        b.output("amax", b.op("row_max", y), FP32)
        return b.spec()

    assert plan(spec(132 * 256)).scope == "row_group"
    with pytest.raises(PlanError, match="spans more tiles than can run at once"):
        plan(spec(132 * 256 + 8))


def reduced(*ops: str) -> FusedSpec:
    b = SpecBuilder(4096, 1024, BF16)
    x = b.op("relu", b.gemm())
    b.output("y", x, BF16)
    for op in ops:
        r = b.op(op, x)
        b.output(op, b.field(r, "mean") if op.endswith("welford") else r, FP32)
    return b.spec()


def test_column_and_full_reductions_take_shared_memory() -> None:
    """By hand, for pingpong 128x128: eight warps, a value a column each, bits of 33 tiles, five barriers."""
    plain, columns, both, welford = (
        next(p for p in plans(reduced(*ops)) if p.shape.name == "pingpong-128x128-c2")
        for ops in ((), ("col_sum",), ("col_sum", "full_sum"), ("col_welford",))
    )

    def beside_stages(p: KernelPlan) -> int:
        return p.shared_bytes - p.stages * (memory.stage_bytes(p.spec, p.shape) + 16)

    assert beside_stages(columns) - beside_stages(plain) == 8 * 128 * 4 + 8 + 5 * 8
    assert beside_stages(both) - beside_stages(columns) == 8 * 8
    assert beside_stages(welford) - beside_stages(plain) == 8 * 128 * 8 + 8 + 5 * 8


def test_tails_cost_something() -> None:
    shape = TileShape("cooperative", 128, 256, 2)
    times = []
    for ops in ((), ("full_sum",), ("full_sum", "col_sum")):
        p = force(reduced(*ops), shape)
        times.append(cost.predict_us(p.spec, p.program, shape, GPUS["h200"], 16384))
    assert times == sorted(set(times))


def test_batches_reduce_along_rows_only() -> None:
    b = SpecBuilder(64, 64, BF16, batched=True)
    x = b.gemm()
    b.output("y", b.op("sub", x, b.op("row_max", x)), BF16)
    assert plan(b.spec()).scope == "tile"
    b.output("sums", b.op("col_sum", x, name="sums"), FP32)
    with pytest.raises(PlanError, match="sums: a reduction over the rows of a batch"):
        plan(b.spec())


# --- column reductions that tiles read ---


def centred(n: int = 512, op: str = "col_welford") -> FusedSpec:
    b = SpecBuilder(n, 512, BF16)
    x = b.gemm()
    r = b.op(op, x)
    b.output("y", b.op("sub", x, b.field(r, "mean") if op.endswith("welford") else r), BF16)
    return b.spec()


def resident(n: int, m: int, gpu: str = "h200") -> list[KernelPlan]:
    return [c for c in candidates(centred(n), gpu, m) if isinstance(c, KernelPlan)]


def test_all_tiles_run_at_once() -> None:
    """132 SMs: clusters of a row block, row blocks of 128 rows; and one team a CTA."""
    for n in (64, 200, 512, 1000, 4096):
        for p in resident(n, 1):
            assert p.schedule == "cooperative"
            assert p.max_m == 132 // p.cluster_n // p.shape.clusters_n(n) * 128
            assert p.shape in {q.shape for q in resident(n, p.max_m)}
            assert p.shape not in {q.shape for q in resident(n, p.max_m + 1)}


def test_wider_tiles_run_more_rows_at_once() -> None:
    assert row_limits(centred(512)) == (16 * 128, 33 * 128, 44 * 128, 66 * 128)
    assert row_limits(centred(200)) == (33 * 128, 66 * 128, 132 * 128)
    assert row_limits(centred(512), "h200:100") == (12 * 128, 25 * 128, 33 * 128, 50 * 128)
    assert row_limits(catalog.linear(512, 64, BF16)) == ()
    assert plan(centred(512), m=66 * 128).max_m == 66 * 128
    with pytest.raises(PlanError, match=r"M <= 8448 fits, planned for M = 8449"):
        plan(centred(512), m=66 * 128 + 1)
    with pytest.raises(PlanError, match="planned for any M"):
        plan(centred(512))


def test_too_wide_a_row_block_is_never_resident() -> None:
    assert row_limits(centred(132 * 256)) == (128,)
    assert row_limits(centred(132 * 256 + 8)) == ()
    with pytest.raises(PlanError, match="M <= 0 fits"):
        plan(centred(132 * 256 + 8), m=1)


def test_exchanged_columns_take_shared_memory_but_no_collector() -> None:
    """Eight warps of a cooperative team, a value a column each."""
    shape = TileShape("cooperative", 128, 128, 2)
    for op, floats in (("col_sum", 1), ("col_welford", 2)):
        p = force(centred(512, op), shape, m=1024)
        assert memory.column_bytes(p.program, shape) == 8 * 128 * 4 * floats
        assert memory.collector_bytes(p.program, shape) == 0
    tail = force(reduced("col_sum"), shape)
    assert memory.column_bytes(tail.program, shape) == 0


def test_one_kernel_of_batch_norm_is_predicted_to_beat_two() -> None:
    one = plan(centred(512), m=4096).predicted_us
    assert one < sum(plan(stage.spec, m=4096).predicted_us for stage in stages(centred(512)))
    later = [plan(centred(512), m=m).predicted_us for m in (128, 2048, 4096, 8448)]
    assert later == sorted(set(later))


def test_kernels_are_one_where_the_gpu_holds_all_tiles() -> None:
    spec = centred(512)
    assert [len(kernels(spec, "h200", m)) for m in (1, 8448, 8449, None)] == [1, 1, 2, 2]
    assert len(kernels(spec, "h200:100", 8448)) == 2
    (one,) = kernels(spec, "h200", 1)
    assert one == whole(normalize(spec))
    assert kernels(spec, "h200", 8449) == stages(spec)
    linear = catalog.linear(64, 64, BF16)
    assert kernels(linear, "h200", 1) == kernels(linear) == stages(linear)


# --- layouts and sizes ---


def laid_out(a: Major, b_major: Major, k: int = 64, n: int = 64) -> FusedSpec:
    b = SpecBuilder(n, k, BF16, a_major=a, b_major=b_major)
    b.output("y", b.gemm(), BF16)
    return b.spec()


def test_k_may_be_anything_where_it_is_contiguous_in_no_factor() -> None:
    plan(laid_out(Major.MN, Major.MN, k=37))
    for majors in ((Major.K, Major.MN), (Major.MN, Major.K), (Major.K, Major.K)):
        with pytest.raises(PlanError, match="K = 37 must be a multiple of 8"):
            plan(laid_out(*majors, k=37))


def test_layouts_are_said() -> None:
    said = " ".join(plan(laid_out(Major.MN, Major.MN)).decisions)
    assert "A is contiguous along M" in said
    assert "B is contiguous along N" in said
    assert "threads hold pairs of columns, or trade accumulators" in said
    assert "contiguous" not in " ".join(plan(laid_out(Major.K, Major.K)).decisions)


def test_what_was_not_permuted_costs_a_trade() -> None:
    plain = plan(laid_out(Major.K, Major.K, 1024, 1024), "h200", 8192)
    traded = plan(laid_out(Major.K, Major.MN, 1024, 1024), "h200", 8192)
    assert traded.predicted_us > plain.predicted_us


@pytest.mark.parametrize("n", [1, 3, 7, 100, 1001, 4099])
def test_any_n_has_a_plan(n: int) -> None:
    """Rows that are not whole runs of eight columns are moved by element: no slots."""
    spec = catalog.layernorm(n, 64, BF16, bias=BF16, residual=BF16)
    p = plan(spec)
    assert p.tile_slots == 0
    how = f"element by element, as rows of {n} are not aligned"
    assert f"residual: read by the threads from global memory, {how}" in p.decisions
    assert f"y: stored at any strides, {how}" in p.decisions
    assert not any("stream through shared memory" in line for line in p.decisions)


def test_strided_tiles_take_no_slots_and_widen_none() -> None:
    b = SpecBuilder(1024, 1024, BF16)
    x = b.op("add", b.gemm(), b.load("position", Space.TILE, FP32, strided=True))
    b.output("y", b.op("add", x, b.load("residual", Space.TILE, BF16)), BF16)
    for p in plans(b.spec()):
        assert memory.slot_bytes(p.spec) == 64 * 32 * 2
        assert memory.needed_slots(p.program, p.shape) == p.shape.rows_of_warpgroup // 64


def test_narrow_elements_have_narrow_slots() -> None:
    b = SpecBuilder(1024, 1024, BF16)
    keep = b.load("keep", Space.TILE, DType.BOOL)
    b.output("y", b.op("where", keep, b.gemm(), b.const(0.0)), BF16)
    assert memory.slot_bytes(plan(b.spec()).spec) == 64 * 32
