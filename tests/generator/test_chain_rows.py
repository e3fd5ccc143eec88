"""Which tile operand of a chain may be read from the rows of its A, and what is held as a whole."""

from __future__ import annotations

import pytest

from comfuse.generator.catalog import chains
from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit import emit_chain
from comfuse.generator.plan.chain import ChainPlan, chain_candidates
from comfuse.generator.plan.chain.rows import holds_tiles
from comfuse.generator.spec import DType

from .chain_programs import edge_network

BF16, FP16, FP32 = DType.BF16, DType.FP16, DType.FP32


def plans(chain: ChainSpec) -> list[ChainPlan]:
    found = [p for p in chain_candidates(chain) if isinstance(p, ChainPlan)]
    assert found
    return found


@pytest.mark.parametrize(
    "chain",
    [
        chains.b2b(128, 128, 128, BF16, residual1=BF16),
        chains.b2b(72, 72, 256, FP16, residual1=FP16),
        chains.mlp(64, 64, 256, BF16, residual=BF16, norm="layernorm", activation="silu"),
        edge_network(),
    ],
)
def test_a_residual_around_all_links_may_be_a(chain: ChainSpec) -> None:
    """In every shape; the kernel's text names it behind K, and a decision does."""
    for p in plans(chain):
        assert p.rows_operand is not None
        operand = p.spec.last.operands[p.rows_operand]
        assert f"</*K=*/{chain.links[0].k}, {operand.name}>" in emit_chain(p).text
        assert any(line.startswith(f"{operand.name}: where it is the first GEMM's A") for line in p.decisions)


@pytest.mark.parametrize(
    "chain",
    [
        chains.b2b(128, 64, 128, BF16, residual1=BF16),  # not as wide as A
        chains.b2b(128, 128, 128, BF16, residual1=FP32),  # another element type
        chains.b2b(128, 128, 128, BF16, residual1=BF16, strided=("residual1",)),  # not by TMA
        chains.b2b(128, 128, 128, BF16, residual0=BF16),  # between the GEMMs
        chains.b2b(128, 128, 128, BF16, residual0=BF16, residual1=BF16),  # beside another
        chains.b2b(256, 256, 128, BF16, residual1=BF16),  # the slots hold half a tile
        chains.b2b(128, 128, 128, BF16),
    ],
)
def test_other_operands_are_not(chain: ChainSpec) -> None:
    for p in plans(chain):
        assert p.rows_operand is None
        assert f"</*K=*/{chain.links[0].k}>" in emit_chain(p).text


def test_tiles_are_held_where_the_slots_hold_them() -> None:
    held = {
        name: {holds_tiles((p.middle, *p.further), p.program, p.tile_slots) for p in plans(chain)}
        for name, chain in {
            "whole": chains.b2b(128, 64, 128, BF16, residual1=FP32),
            "in the middle too": chains.b2b(128, 128, 128, BF16, residual0=BF16, residual1=BF16),
            "in two halves": chains.b2b(256, 128, 128, BF16, residual1=BF16),
            "none": chains.b2b(128, 64, 128, BF16),
        }.items()
    }
    assert held == {"whole": {True}, "in the middle too": {False}, "in two halves": {False}, "none": {False}}
