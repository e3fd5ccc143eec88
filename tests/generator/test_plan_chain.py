"""Which kernel runs a chain, and why some chains are none."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.catalog import chains
from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit import emit, emit_chain
from comfuse.generator.errors import PlanError, SpecError
from comfuse.generator.plan import GPUS, candidates, plan
from comfuse.generator.plan.chain import (
    CHAIN_SHAPES,
    ChainPlan,
    ChainRefusal,
    ChainShape,
    Weights,
    chain_candidates,
    check_chain,
    cost,
    force_chain,
    memory,
    plan_chain,
    registers,
)
from comfuse.generator.spec import DType, FusedSpec, Major, Space

from .chain_programs import CHAINS, edge_network, mlp, three_layers

BF16, FP32, INT8 = DType.BF16, DType.FP32, DType.INT8
H200 = GPUS["h200"]


NORMED: dict[str, Any] = {
    "residual": BF16, "norm": "layernorm", "norm_weight": BF16, "norm_bias": BF16, "activation": "silu",
}  # fmt: skip


# --- choices ---


@pytest.mark.parametrize(
    "m, chain, shape, residence",
    [
        (327_680, mlp(128, 512, 128), ChainShape(2, 2, False), "resident_first"),
        (262_144, mlp(128, 128, 128), ChainShape(2, 2, False), "resident"),
        (65_536, mlp(256, 1024, 256), ChainShape(2, 1, False), "streamed"),
        (1_048_576, mlp(64, 256, 64), ChainShape(3, 2, False), "resident"),
        (1_000_000, mlp(128, 128, 128, **NORMED), ChainShape(3, 1, False), "resident"),
    ],
)
def test_shapes_of_measured_sizes(m: int, chain: ChainSpec, shape: ChainShape, residence: str) -> None:
    chosen = plan_chain(chain, "h200", m)
    assert chosen.shape == shape
    assert chosen.weights.residence == residence
    assert chosen.floor_us <= chosen.predicted_us < chosen.apart_us


@pytest.mark.parametrize("name", CHAINS)
def test_plans_are_within_their_limits(name: str) -> None:
    found = chain_candidates(CHAINS[name])
    assert tuple(c.shape for c in found) == CHAIN_SHAPES
    plans = [c for c in found if isinstance(c, ChainPlan)]
    assert plans
    for p in plans:
        assert p.shared_bytes <= H200.shared_bytes
        assert p.shared_bytes == memory.shared_bytes(p.deferred, p.shape, p.weights, p.tile_slots)
        assert p.registers <= {(2, 1): 208, (2, 2): 192}.get((p.shape.warpgroups, p.shape.buffers), 128)
        assert p.spec.last.n <= p.tile_n < p.spec.last.n + 64
        least = memory.least_ring(p.weights.residence)
        assert least <= p.weights.ring <= memory.MAX_RING
        needed = memory.needed_slots(p.middle, *p.further, p.program)
        assert p.tile_slots >= needed
        assert (p.tile_slots > 0) == (needed > 0)


def test_weights_stay_as_far_as_they_fit() -> None:
    shape = ChainShape(2, 2, True)
    by_h = {h: force_chain(mlp(128, h, 128), shape).weights for h in (64, 384, 448, 512, 1024)}
    assert by_h[64] == by_h[384] == Weights("resident", 0)
    assert by_h[448].residence == by_h[512].residence == "resident_first"
    assert by_h[512].ring == 2  # and the next rows of X
    assert by_h[1024].residence == "streamed"
    assert by_h[1024].ring == memory.MAX_RING


def test_tile_slots_come_before_a_deeper_ring() -> None:
    """Blocks of the ring are large; two chunks of each tile operand are not."""
    shape = ChainShape(2, 1, False)
    plain, with_tile = (force_chain(mlp(256, 1024, 256, residual=r), shape) for r in (None, FP32))
    assert with_tile.tile_slots >= 2
    assert with_tile.weights.ring < plain.weights.ring


def test_m_and_gpu_are_planned_for() -> None:
    chain = mlp(128, 512, 128)
    assert plan_chain(chain, "h200", 64).predicted_us < plan_chain(chain, "h200", 10**6).predicted_us
    assert plan_chain(chain, "h100", 10**6).floor_us >= plan_chain(chain, "h200", 10**6).floor_us
    half = plan_chain(chain, "h200:66", 10**6)
    assert half.predicted_us > 1.8 * plan_chain(chain, "h200", 10**6).predicted_us
    assert half.gpu == "h200:66"


def test_the_floor_counts_the_middle_in_no_traffic() -> None:
    m, chain = 1000, chains.mlp(64, 128, 256, BF16, gated=True)
    assert cost.traffic(chain, m) == 2 * (m * 128 + 2 * 256 * 128 + 64 * 256 + m * 64)
    flops = 2 * m * (2 * 128 * 256 + 256 * 64)
    assert cost.floor_us(chain, dataclasses.replace(H200, bandwidth=math.inf), m) == pytest.approx(
        1e6 * flops / H200.flops
    )


def test_force_takes_any_shape_that_fits() -> None:
    chain = mlp(64, 128, 64)
    for shape in CHAIN_SHAPES:
        assert force_chain(chain, shape).shape == shape
    with pytest.raises(PlanError, match="none of the planner's: 2x64-b2-registers"):
        force_chain(chain, ChainShape(4, 2, True))
    with pytest.raises(PlanError, match=r"3 warpgroups .*: GEMMs and programs hold 176 registers"):
        force_chain(mlp(128, 128, 128), ChainShape(3, 2, True))


# --- refusals ---


def middle(h: int = 64, **keywords: Any) -> SpecBuilder:
    return SpecBuilder(h, 64, BF16, **keywords)


def chained(b: SpecBuilder, x: int, last: FusedSpec | None = None) -> ChainSpec:
    b.output("h", x, BF16)
    return ChainSpec((b.spec(), last or catalog.linear(64, b.n, BF16)))


def with_reduction() -> ChainSpec:
    b = middle()
    x = b.gemm()
    return chained(b, b.op("relu", b.op("sub", x, b.op("row_max", x)), name="shifted"))


def batched(last: FusedSpec) -> ChainSpec:
    links = catalog.linear(64, 64, BF16), last
    return ChainSpec(tuple(dataclasses.replace(link, batched=True) for link in links))


def with_mean(**keywords: Any) -> ChainSpec:
    batched = keywords.get("batched", False)
    b = middle(batched=batched)
    acc = b.gemm()
    x = b.op("sub", acc, b.op("row_sum", acc))
    return chained(b, x, dataclasses.replace(catalog.linear(64, 64, BF16), **keywords))


def with_tile(dtype: DType, h: int = 64, strided: bool = False) -> ChainSpec:
    b = middle(h)
    return chained(b, b.op("add", b.gemm(), b.load("mask", Space.TILE, dtype, strided=strided)))


def with_last(change: Any, **keywords: Any) -> ChainSpec:
    b = SpecBuilder(64, 64, BF16, **keywords)
    change(b, b.gemm())
    return ChainSpec((catalog.linear(64, 64, BF16), b.spec()))


def with_operands(count: int, space: Space) -> ChainSpec:
    b = middle()
    x = b.gemm()
    for i in range(count):
        x = b.op("add", x, b.load(f"x{i}", space))
    return chained(b, x, catalog.linear(64, 64, BF16, bias=BF16))


def with_unread() -> ChainSpec:
    b = middle()
    b.load("unread", Space.ROW)
    return chained(b, b.gemm())


@pytest.mark.parametrize("chain", [with_tile(BF16, strided=True), with_tile(INT8, h=72)])
def test_a_tile_between_the_gemms_may_lie_anywhere(chain: ChainSpec) -> None:
    """Threads read what TMA cannot bring, and keep where its rows lie."""
    planned, plain = plan(chain), plan(with_tile(BF16))
    assert (planned.tile_slots, plain.tile_slots > 0) == (0, True)
    held = registers.held(planned.deferred.links, planned.middle, planned.program, planned.shape)
    assert held > registers.held(plain.deferred.links, plain.middle, plain.program, planned.shape)


def three_with(change: Any) -> ChainSpec:
    """Three links, of which the second hands on what ``change`` makes of its product."""
    b = middle()
    b.output("p", change(b, b.gemm()), BF16)
    plain = catalog.linear(64, 64, BF16)
    return ChainSpec((plain, b.spec(), plain))


def gated_first() -> FusedSpec:
    return mlp(64, 64, 64, gated=True).links[0]


def layouts(**keywords: Any) -> ChainSpec:
    """Of both links, where they have to agree."""
    return ChainSpec(tuple(dataclasses.replace(catalog.linear(64, 64, BF16), **keywords) for _ in range(2)))


@pytest.mark.parametrize(
    "chain, reason",
    [
        (ChainSpec((catalog.linear(64, 64, BF16),) * 4), "4 links; chains of at most 3 can be one kernel"),
        (
            three_with(lambda b, x: b.op("mul", x, b.op("row_sum", x, name="total"))),
            "total: a reduction between the GEMMs of a chain of more than two",
        ),
        (
            three_with(lambda b, x: b.op("mul", x, b.op("col_sum", x, name="sums"))),
            "sums: a reduction between the GEMMs that is not along rows",
        ),
        (
            ChainSpec((gated_first(), *(catalog.linear(64, 64, BF16),) * 2)),
            "4 factors beside A, at most 3 are possible",
        ),
        (
            ChainSpec((dataclasses.replace(catalog.linear(64, 64, BF16), batched=True),) * 3),
            "3 links in batches; batched chains of two can be one kernel",
        ),
        (three_layers(64, 64, 60, 64), "H = 60 must be a multiple of 8"),
        (
            three_layers(64, 64, 72, 136),
            "N = 136 behind the second GEMM's 72 columns: at most 128 are",
        ),
        (three_layers(64, 64, 264, 64), "N = 264; a tile has to hold whole rows, of at most 256 columns"),
        (batched(catalog.linear(64, 64, BF16, bias=BF16)), "bias: a vector in a batched chain"),
        (with_mean(b_major=Major.MN), "needs a second B that is contiguous along K"),
        (with_mean(batched=True), "would have to meet the second B of each batch"),
        (layouts(a_major=Major.MN), "A of link 0 is contiguous along M, not K"),
        (layouts(b_major=Major.MN), "B of link 0 is contiguous along N, not K"),
        (mlp(60, 64, 64), "K = 60 must be a multiple of 8"),
        (mlp(64, 60, 64), "H = 60 must be a multiple of 8"),
        (mlp(64, 64, 60), "N = 60 must be a multiple of 8"),
        (mlp(64, 64, 264), "N = 264; a tile has to hold whole rows, of at most 256 columns"),
        (with_reduction(), "shifted: relu of a value that reads a reduction of its row"),
        (with_unread(), "unread: an operand of link 0 that nothing reads"),
        (
            with_last(lambda b, x: b.output("y", b.op("mul", x, b.gemm(1)), BF16), products=2),
            "two products in link 1; only the first link can have two side by side",
        ),
        (
            with_last(lambda b, x: b.output("sums", b.op("col_sum", x, name="sums"), FP32)),
            "sums: a reduction over rows; chains reduce along rows only",
        ),
        (
            with_last(lambda b, x: b.output("sums", b.op("group_sum", x, name="sums"), FP32), group=16),
            "sums: groups of 16 columns of N = 64; groups of 32, 64, 96,",
        ),
        (with_operands(16, Space.ROW), "17 tensor operands, at most 16 are possible"),
        (with_operands(17, Space.SCALAR), "17 scalars, at most 16 are possible"),
        (
            with_last(lambda b, x: [b.output(f"y{i}", x, BF16) for i in range(9)]),
            "9 outputs, at most 8 are possible",
        ),
        (
            mlp(1024, 64, 64),
            "no shape fits: K = 1024 and N = 64 need at least 524896 bytes of shared memory, the GPU has",
        ),
        (mlp(512, 512, 256), "K = 512 and N = 256 need at least 265312 bytes of shared memory, the GPU has"),
    ],
)
def test_chains_that_no_kernel_runs(chain: ChainSpec, reason: str) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)):
        force_chain(chain)
    with pytest.raises(PlanError, match=re.escape(reason)):
        plan_chain(chain)


def test_groups_lie_within_the_tile() -> None:
    b = SpecBuilder(192, 64, BF16, group=64)
    x = b.gemm()
    b.output("y", b.op("mul", x, b.op("group_max", x, name="peak")), BF16)
    chain = ChainSpec((catalog.linear(64, 64, BF16), b.spec()))
    assert force_chain(chain).tile_n == 192
    odd = dataclasses.replace(b.spec(), n=160, group=32)
    assert force_chain(ChainSpec((chain.links[0], odd))).tile_n == 192
    single = dataclasses.replace(b.spec(), n=256, group=256)
    assert force_chain(ChainSpec((chain.links[0], single))).tile_n == 256


def test_two_kernels_where_they_are_faster() -> None:
    """Of few rows each CTA reads all weights, and multiplies by all of them."""
    chain, m = mlp(256, 8192, 256), 128
    chosen = force_chain(chain, m=m)
    assert chosen.apart_us == pytest.approx(sum(plan(link, "h200", m).predicted_us for link in chain.links))
    reason = (
        f"a kernel for each GEMM is faster: predicted {chosen.apart_us:.0f} us, as one"
        f" {chosen.predicted_us:.0f} us, for M = {m}, K = 256"
    )
    with pytest.raises(PlanError, match=re.escape(reason)):
        plan_chain(chain, "h200", m)


def test_three_gemms_stay_on_the_chip() -> None:
    """All weights in shared memory where they are 128 wide; 256 wide they pass by, in one shape alone."""
    chosen = plan_chain(edge_network(), "h200", 10**6)
    assert chosen.weights.residence == "resident"
    assert [p.spec.n for p in (chosen.middle, *chosen.further, chosen.program)] == [128, 128, 128]
    wide = [c for c in chain_candidates(edge_network(256)) if isinstance(c, ChainPlan)]
    assert [(p.shape.name, p.weights.residence) for p in wide] == [("2x64-b1-shared", "streamed")]
    assert chosen.floor_us * 1e-6 * H200.flops >= 2 * 10**6 * 128 * 128 * 3


def test_three_gemms_are_compared_with_two_of_them_and_one() -> None:
    chain, m = edge_network(), 10**6
    one, two, three = chain.links
    first, last = (force_chain(ChainSpec(links), m=m) for links in ((one, two), (two, three)))
    alone = [plan(link, "h200", m).predicted_us for link in (one, two, three)]
    apart = min(sum(alone), first.predicted_us + alone[2], alone[0] + last.predicted_us)
    assert plan_chain(chain, "h200", m).apart_us == pytest.approx(apart)


def test_a_third_gemm_costs_its_products_and_its_program() -> None:
    """Beside the same first two: what ran beside these still does."""
    two, three = edge_network().links[:2], edge_network().links
    costs = [
        cost.predict_us(p.spec, p.middle, p.further, p.program, p.shape, p.weights, H200, 10**6)
        for chain in (ChainSpec(two), ChainSpec(three))
        for p in [force_chain(chain, ChainShape(3, 1, False), m=10**6)]
    ]
    assert costs[1] - costs[0] > 0.3 * 2e6 * 10**6 * 128 * 128 / H200.flops


def test_one_planner_and_one_emitter_for_both_kinds_of_programs() -> None:
    chain = mlp(128, 512, 128)
    assert plan(chain, "h200", 4096) == plan_chain(chain, "h200", 4096)
    assert candidates(chain, "h200", 4096) == chain_candidates(chain, "h200", 4096)
    assert emit(plan(chain)) == emit_chain(plan_chain(chain))
    assert [emit(plan(link)).plan.spec.n for link in check_chain(chain).links] == [512, 128]  # type: ignore[union-attr]
    assert chain.operands == tuple(o for link in chain.links for o in link.operands)
    with pytest.raises(PlanError, match="N = 512; a tile has to hold whole rows"):
        check_chain(mlp(64, 64, 512))


def test_one_kernel_of_few_rows_saves_a_launch() -> None:
    assert plan_chain(mlp(128, 128, 128), "h200", 64).predicted_us < 10.0


def test_a_link_that_no_kernel_runs_alone_is_no_rival() -> None:
    chain = mlp(64, 64, 64)
    assert cost.apart_us(chain, "h200", 1000) < math.inf
    wide = dataclasses.replace(chain.last, dtype=BF16, k=60)
    assert cost.apart_us(ChainSpec((chain.links[0], wide)), "h200", 1000) == math.inf


def test_errors_of_the_arguments() -> None:
    with pytest.raises(PlanError, match="m must be at least 1, got 0"):
        plan_chain(mlp(64, 64, 64), "h200", 0)
    with pytest.raises(PlanError, match="unknown GPU 'a100'"):
        plan_chain(mlp(64, 64, 64), "a100")
    with pytest.raises(SpecError, match="a chain has at least two links"):
        plan_chain(ChainSpec((catalog.linear(64, 64, BF16),)))


def test_refusals_name_their_constraint() -> None:
    found = {c.shape: c for c in chain_candidates(mlp(256, 512, 256))}
    refusal = found[ChainShape(3, 2, True)]
    assert isinstance(refusal, ChainRefusal)
    assert refusal.constraint == "registers_fit"


def test_a_program_that_takes_too_many_registers() -> None:
    b = SpecBuilder(256, 64, BF16, group=32)
    x = b.gemm()
    for i in range(8):
        x = b.op("mul", x, b.op("group_max", x, name=f"peak{i}"))
    b.output("y", x, BF16)
    chain = ChainSpec((catalog.linear(64, 64, BF16), b.spec()))
    with pytest.raises(PlanError, match="GEMMs and programs hold 244 registers a thread, at most 208"):
        force_chain(chain)
