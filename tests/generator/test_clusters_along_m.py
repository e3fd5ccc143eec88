"""Clusters of two row blocks: plans that are forced and timed, and never chosen by the cost model."""

from __future__ import annotations

import re

import pytest

from comfuse import plan_text
from comfuse.generator import catalog
from comfuse.generator.emit import emit
from comfuse.generator.errors import PlanError
from comfuse.generator.plan import (
    SHAPES,
    SHAPES_ALONG_M,
    SHAPES_OF_TWO_A_ALONG_M,
    SHAPES_OF_TWO_ALONG_M,
    KernelPlan,
    Refusal,
    TileShape,
    candidates,
    candidates_to_measure,
    force,
    plan,
    shapes,
    shapes_to_measure,
)
from comfuse.generator.spec import DType, FusedSpec

from . import cpp_model
from .programs import ALONG_M, GOLDEN, ROWS

BF16 = DType.BF16
ALONG_N = TileShape("cooperative", 128, 256, 2)
NARROW = TileShape("cooperative", 128, 192, 1, cluster_m=2)


def layernorm(n: int) -> FusedSpec:
    return catalog.layernorm(n, 4096, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_cost_model_does_not_choose_among_them(name: str) -> None:
    spec, m = GOLDEN[name], ROWS.get(name)
    assert plan(spec, m=m).cluster_m == 1
    assert all(c.shape.cluster_m == 1 for c in candidates(spec, m=m) if isinstance(c, Refusal | KernelPlan))
    found = candidates_to_measure(spec, m=m)
    assert tuple(c.shape for c in found) == shapes_to_measure(spec)
    assert not set(shapes_to_measure(spec)) & set(shapes(spec))


def test_names_are_unique() -> None:
    names = [s.name for s in (*SHAPES, *SHAPES_ALONG_M)]
    assert len(set(names)) == len(names)
    assert set(SHAPES_OF_TWO_A_ALONG_M) <= set(SHAPES_OF_TWO_ALONG_M)
    assert {(s.cluster_m, s.cluster_n) for s in (*SHAPES_ALONG_M, *SHAPES_OF_TWO_ALONG_M)} == {(2, 1)}


def test_a_forced_plan_is_like_that_of_a_cluster_along_n() -> None:
    spec = layernorm(4096)
    p, along_n = force(spec, ALONG_M), force(spec, ALONG_N)
    assert p.shape == ALONG_M
    assert p.label == f"cooperative-128x256-m2-s{p.stages}"
    assert "cluster 2 x 1" in "\n".join(plan_text.kernel_text(p, "name"))
    assert (p.scope, p.shared_bytes, p.registers) == ("row_group", along_n.shared_bytes, along_n.registers)
    assert p.predicted_us == along_n.predicted_us
    assert any(ALONG_M.label in decision for decision in p.decisions)
    assert force(spec, ALONG_M, stages=along_n.stages + 1).stages == along_n.stages + 1


def test_rows_of_two_tiles_are_exchanged_in_clusters_along_n_only() -> None:
    assert force(layernorm(512), ALONG_N).scope == "cluster"
    assert force(layernorm(512), ALONG_M).scope == "row_group"


def test_phantoms_are_row_blocks() -> None:
    assert [ALONG_M.clusters_m(m) for m in (1, 128, 256, 257, 512)] == [1, 1, 1, 2, 2]
    assert (ALONG_M.clusters_n(1280), ALONG_N.clusters_n(1280)) == (5, 3)
    assert not any("phantom" in d for d in force(layernorm(1280), ALONG_M).decisions)


@pytest.mark.parametrize(
    "spec, shape, m, reason",
    [
        (layernorm(512), ALONG_M, 128, "M = 128 is one row block: a cluster of 2 would hold phantoms only"),
        (GOLDEN["column_major_weight"], NARROW, None, "parts of 96 columns are no multiples of 64"),
        (GOLDEN["attention_scores"], ALONG_M, None, "batched: the row blocks of a cluster along M"),
        (layernorm(67 * 256), ALONG_M, None, f"N <= {66 * 256} fits"),
        (GOLDEN["batch_norm_resident"], ALONG_M, 66 * 128 + 1, f"M <= {66 * 128} fits"),
    ],
)
def test_refusals(spec: FusedSpec, shape: TileShape, m: int | None, reason: str) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)):
        force(spec, shape, m=m)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_kernel_has_the_cluster(name: str) -> None:
    for p in candidates_to_measure(GOLDEN[name], m=ROWS.get(name)):
        if isinstance(p, KernelPlan):
            source = emit(p)
            assert cpp_model.parse(source.text).constants["Cluster"] == [2, 1]
            assert f"_{p.tile_m}x{p.tile_n}x{p.tile_k}_c2x1_{p.schedule}_" in source.name
