"""Kernels of two GEMMs, in the shapes that the benchmark has: what the compilers say of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from comfuse import library
from comfuse.build import build
from comfuse.generator.catalog import b2b, mlp
from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit.chain import emit_chain
from comfuse.generator.plan.chain import force_chain
from comfuse.generator.spec import DType

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compilers")]

BF16 = DType.BF16


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


CHAINS: dict[str, Callable[[], ChainSpec]] = {
    "two-buffers-first-weights-stay": lambda: mlp(128, 128, 512, BF16, b0=BF16, b1=BF16),
    "three-warpgroups": lambda: mlp(128, 128, 128, BF16, b0=BF16, b1=BF16),
    "streamed": lambda: mlp(256, 256, 1024, BF16, b0=BF16, b1=BF16, activation="gelu_tanh"),
    "narrow": lambda: mlp(64, 64, 256, BF16, b0=BF16),
    "layernorm-and-residual": edge,
    "gated": lambda: mlp(256, 256, 512, BF16, gated=True, b0=BF16, b1=BF16, activation="silu"),
    "parts-of-blocks": lambda: b2b(104, 72, 200, BF16, b0=BF16, residual0=BF16, activation0="relu"),
    "one-block": lambda: b2b(8, 8, 8, BF16, b0=BF16, b1=BF16, activation0="relu"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_neither_spill_nor_serialise(name: str) -> None:
    """In the user's own cache: these compile for seconds each."""
    plan = force_chain(CHAINS[name]())
    built = build(emit_chain(plan))
    facts = built.info["ptxas"]
    assert facts["functions"] == 1
    assert facts["spill_bytes"] == 0
    assert library.load(built).workspace_bytes(1) == 0  # nothing is exchanged between tiles
