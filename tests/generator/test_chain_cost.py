"""How long a chain's kernel should take."""

from __future__ import annotations

import dataclasses

import pytest

from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import GPUS, Gpu
from comfuse.generator.plan.chain import (
    ChainPlan,
    ChainShape,
    chain_candidates,
    cost,
    force_chain,
    plan_chain,
)
from comfuse.generator.spec import DType

from .chain_programs import mlp

BF16 = DType.BF16
H200 = GPUS["h200"]


def times(chain: ChainSpec, m: int, gpu: Gpu = H200) -> dict[str, float]:
    """By shape, by the model alone."""
    plans = (p for p in chain_candidates(chain, gpu, m) if isinstance(p, ChainPlan))
    return {
        p.shape.name: cost.predict_us(p.spec, p.middle, p.further, p.program, p.shape, p.weights, gpu, m)
        for p in plans
    }


def with_constants(**values: float) -> Gpu:
    return H200.calibrated(values)


def test_a_chain_by_hand() -> None:
    """One tile an SM, without a program worth mentioning: a launch, what stays, products, memory."""
    gpu = with_constants(chain_efficiency=1.0, chain_slot_cycles_2=1e-9, chain_behind_cycles_2=1e-9)
    m = 64 * gpu.processors
    chain = mlp(128, 256, 128)
    products = 1e6 * 2 * m * 256 * (128 + 128) / gpu.flops
    weights = 1e6 * gpu.processors * 2 * 256 * (128 + 128) / gpu.l2_bandwidth
    moved = 1e6 * cost.traffic(chain, m) / gpu.bandwidth
    expected = gpu.constants.launch_us + weights + (products**4 + moved**4) ** 0.25
    assert times(chain, m, gpu)["2x64-b1-shared"] == pytest.approx(expected)
    # The busiest SM has two.
    twice = gpu.constants.launch_us + weights + (16 * products**4 + moved**4) ** 0.25
    assert times(chain, m + 64, gpu)["2x64-b1-shared"] == pytest.approx(twice, rel=0.01)


def test_values_a_column_and_multiply_adds_cost_less() -> None:
    """GELU takes half of its argument: of the bias once for all rows, of the product within their sum."""
    with_bias, without = (middle_slots(mlp(64, 256, 64, b0=b0)) for b0 in (BF16, None))
    # The bias is loaded and added; but without it what halves the product is an instruction of its own.
    assert with_bias - without == pytest.approx(1 + 1 - 1, abs=0.01)


def middle_slots(chain: ChainSpec) -> float:
    """An element's, from what the time gains where each takes a cycle more."""
    tiles, h = 100, chain.links[0].n
    few, many = (
        times(chain, tiles * 64 * H200.processors, with_constants(chain_slot_cycles_2=cycles))
        for cycles in (100.0, 101.0)
    )
    gained = (many["2x64-b1-shared"] - few["2x64-b1-shared"]) / 1e6 * H200.clock
    return gained * 128 / (tiles * 64 * h)


def test_what_passes_by_is_loaded_beside_the_products() -> None:
    """Only what stays has to come first; where what passes by takes longer than the products, it counts."""
    m, chain = 327_680, mlp(128, 512, 128)
    assert force_chain(chain, ChainShape(2, 1, False)).weights.residence == "resident_first"
    usual, slow, slower = (
        times(chain, m, dataclasses.replace(H200, l2_bandwidth=H200.l2_bandwidth / by))["2x64-b1-shared"]
        for by in (1, 2, 16)
    )
    assert slow - usual == pytest.approx(1e6 * 132 * 2 * 512 * 128 / H200.l2_bandwidth)
    assert slower > 1.5 * usual


def test_a_second_buffer_hides_what_there_are_products_beside() -> None:
    one, two = "2x64-b1-shared", "2x64-b2-shared"
    saved = {}
    for h in (64, 128, 512):
        found = times(mlp(128, h, 128), 1_000_000)
        saved[h] = 1 - found[two] / found[one]
    assert saved[64] == pytest.approx(
        0.0
    )  # of one block the second GEMM needs the middle, which needs the first
    assert 0.02 < saved[128] < saved[512]
    # A middle that takes longer than all products: hidden is what lies beside those of seven blocks of eight.
    gpu = with_constants(chain_hidden_shared=1.0, chain_slot_cycles_2=10.0)
    m = 64 * gpu.processors
    products = 1e6 * 2 * m * 512 * (128 + 128) / gpu.flops / gpu.constants.chain_efficiency
    found = times(mlp(128, 512, 128), m, gpu)
    assert found[one] - found[two] == pytest.approx(products * 7 / 8, rel=0.01)


def test_a_third_warpgroup_has_the_more_to_hide_the_longer_the_middle() -> None:
    saved = {}
    for name, h in (("short", 64), ("long", 256)):
        found = times(mlp(64, h, 64), 1_048_576)
        saved[name] = 1 - found["3x64-b1-shared"] / found["2x64-b1-shared"]
    assert 0.0 < saved["short"] < saved["long"]


def test_of_equals_the_one_with_fewer_registers() -> None:
    chain = catalog.attention(64, 64, 512, BF16)
    found = times(chain, 98_304)
    assert found["2x64-b2-registers"] == found["2x64-b2-shared"] == found["2x64-b1-shared"]
    assert not plan_chain(chain, "h200", 98_304).shape.rows_in_registers


def test_a_block_waits_for_its_peak() -> None:
    """Of an online softmax: eight blocks in each of twelve tiles."""
    chain = catalog.attention(64, 64, 512, BF16)
    cycles = H200.constants.chain_peak_cycles
    longer = times(chain, 98_304, with_constants(chain_peak_cycles=cycles + 100))
    usual = times(chain, 98_304)
    for name, us in usual.items():
        assert longer[name] - us == pytest.approx(1e6 * 12 * 8 * 100 / H200.clock, rel=0.02)
