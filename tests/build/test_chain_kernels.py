"""Kernels of two GEMMs and of three, in the shapes that the benchmark has: what the compilers say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from comfuse import library
from comfuse.build import build
from comfuse.generator.catalog import attention, b2b, mlp
from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit.chain import emit_chain
from comfuse.generator.errors import PlanError
from comfuse.generator.plan.chain import CHAIN_SHAPES, ChainPlan, ChainShape, force_chain
from comfuse.generator.spec import DType, Major
from tests.generator.chain_programs import edge_network, normed, three_layers
from tests.ops.chains import every_operand

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compilers")]

BF16, FP16 = DType.BF16, DType.FP16


def edge() -> ChainSpec:
    return mlp(
        128,
        128,
        128,
        BF16,
        b0=BF16,
        b1=BF16,
        residual=BF16,
        norm_weight=BF16,
        norm_bias=BF16,
        activation="silu",
        norm="layernorm",
        residual_position="after",
    )


def softmax_between(n: int, k: int, h: int) -> ChainSpec:
    """Without batches, so that weights may stay."""
    first, last = attention(n, k, h, BF16, v_major=Major.K).links
    return ChainSpec(tuple(replace(link, batched=False) for link in (first, last)))


CHAINS: dict[str, Callable[[], ChainSpec]] = {
    "two-buffers-first-weights-stay": lambda: mlp(128, 128, 512, BF16, b0=BF16, b1=BF16),
    "three-warpgroups": lambda: mlp(128, 128, 128, BF16, b0=BF16, b1=BF16),
    "streamed": lambda: mlp(256, 256, 1024, BF16, b0=BF16, b1=BF16, activation="gelu_tanh"),
    "wide-with-two-buffers": lambda: mlp(192, 128, 256, FP16, b0=FP16, b1=FP16),
    "narrow": lambda: mlp(64, 64, 256, BF16, b0=BF16),
    "layernorm-and-residual": edge,
    "gated": lambda: mlp(256, 256, 512, BF16, gated=True, b0=BF16, b1=BF16, activation="silu"),
    "parts-of-blocks": lambda: b2b(104, 72, 200, BF16, b0=BF16, residual0=BF16, activation0="relu"),
    "attention": lambda: attention(64, 64, 512, BF16),
    "long-masked-attention": lambda: attention(128, 128, 8192, DType.FP16, bias=BF16, causal=True),
    "narrow-attention": lambda: attention(72, 40, 200, BF16, bias=DType.FP32, v_major=Major.K),
    "layernorm-between": lambda: normed(128, 128, 512, BF16),
    "softmax-between": lambda: softmax_between(128, 128, 512),
    "three": lambda: edge_network(),
    "three-with-silu": lambda: edge_network(activation="silu"),
    "three-wide-streamed": lambda: edge_network(256),
    "three-narrow-behind": lambda: three_layers(128, 512, 256, 128, activation="silu"),
    "three-with-residual": lambda: three_layers(128, 512, 128, 128, norm="layernorm", residual=BF16),
    "three-parts-of-blocks": lambda: three_layers(72, 200, 104, 40, FP16, activation="gelu_tanh"),
    "three-tiles": lambda: every_operand(72, k=72, h=200, h1=136, outputs=2),
    "one-block": lambda: b2b(8, 8, 8, BF16, b0=BF16, b1=BF16, activation0="relu"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_neither_spill_nor_serialise(name: str) -> None:
    """In the user's own cache: these compile for seconds each."""
    check(force_chain(CHAINS[name]()))


@pytest.mark.parametrize("shape", CHAIN_SHAPES, ids=lambda shape: shape.name)
def test_three_gemms_in_every_shape_that_takes_them(shape: ChainShape) -> None:
    try:
        plan = force_chain(edge_network(), shape)
    except PlanError:
        assert shape.warpgroups == 3, "three warpgroups have too few registers for more than one shape"
        return
    check(plan)


@pytest.fixture(autouse=True)
def _warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_NVCC_FLAGS", "-Werror=all-warnings")


def check(plan: ChainPlan) -> None:
    built = build(emit_chain(plan))
    facts = built.info["ptxas"]
    assert facts["functions"] == 1
    assert facts["spill_bytes"] == 0
    assert library.load(built).workspace_bytes(1) == 0  # nothing is exchanged between tiles
