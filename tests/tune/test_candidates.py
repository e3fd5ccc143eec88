"""What is timed, and what the cost model saves."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from bench import workloads
from bench.direct import spec_of
from comfuse.errors import PlanError
from comfuse.generator import catalog
from comfuse.generator import plan as planner
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.plan import KernelPlan, Refusal
from comfuse.generator.spec import DType, FusedSpec, Space
from comfuse.tune.candidates import KEEP_WITHIN, candidates

BF16 = DType.BF16
NORM = catalog.layernorm(1024, 1024, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16)
RESULTS = Path(__file__).parents[2] / "bench" / "results"


def fed_back() -> FusedSpec:
    """The sums of the columns, read by all rows: all tiles run at once."""
    b = SpecBuilder(256, 64, BF16)
    x = b.gemm()
    b.output("y", b.op("sub", x, b.op("col_sum", x)), BF16)
    return b.spec()


def test_plans_are_kept_by_their_predicted_time() -> None:
    found = candidates(NORM, "h200", 16384)
    times = [p.predicted_us for p in found.kept]
    assert times == sorted(times)
    fastest = next(p.predicted_us for p in found.kept if p.cluster_m == 1)
    assert max(times) <= KEEP_WITHIN * fastest < min(p.predicted_us for p in found.pruned)
    assert found.by_model == planner.plan(NORM, "h200", None).label
    assert found.rows is None


def test_nothing_is_lost() -> None:
    found, everything = candidates(NORM, "h200", 16384), candidates(NORM, "h200", 16384, math.inf)
    assert {p.label for p in (*found.kept, *found.pruned)} == {p.label for p in everything.kept}
    assert not everything.pruned
    every = (*planner.candidates(NORM, "h200", None), *planner.candidates_to_measure(NORM, "h200", None))
    assert {p.shape for p in everything.kept} == {c.shape for c in every if isinstance(c, KernelPlan)}
    assert found.refused == everything.refused == tuple(c for c in every if isinstance(c, Refusal))
    assert len(found.kept) < len(everything.kept)


def test_clusters_along_m_are_timed_too() -> None:
    """The cost model does not choose among them."""
    found = candidates(NORM, "h200", 16384)
    assert "cooperative-128x256-m2" in {p.shape.name for p in (*found.kept, *found.pruned)}
    assert {p.cluster_m for p in found.kept} == {1, 2}
    assert planner.plan(NORM, "h200", None).cluster_m == 1


@pytest.mark.parametrize("m, rows", [(1, 128), (128, 128), (129, 512), (2048, 2048), (2049, None)])
def test_plans_are_those_of_the_class_of_rows(m: int, rows: int | None) -> None:
    assert candidates(NORM, "h200", m).rows == rows


def test_every_plan_serves_the_whole_class() -> None:
    found = candidates(fed_back(), "h200", 5, math.inf)
    assert found.rows == 128
    assert all(p.max_m is not None and p.max_m >= 128 for p in found.kept)
    assert {p.cluster_m for p in found.kept} == {1}  # one row block
    widest = planner.row_limits(fed_back())[-1]
    last = candidates(fed_back(), "h200", widest, math.inf)
    assert {p.max_m for p in last.kept} == {widest}
    with pytest.raises(PlanError, match="have to run at once"):
        candidates(fed_back(), "h200", widest + 1)


def test_pipelines_are_candidates_of_their_own() -> None:
    b = SpecBuilder(1024, 1024, BF16)
    x = b.op("add", b.gemm(), b.load("r", Space.TILE, DType.FP32))
    b.output("y", b.op("mul", x, b.load("s", Space.TILE, DType.FP32)), BF16)
    found, everything = (candidates(b.spec(), "h200", 16384, within) for within in (KEEP_WITHIN, math.inf))
    every = (*planner.candidates(b.spec()), *planner.candidates_to_measure(b.spec()))
    planned = {c.shape: c for c in every if isinstance(c, KernelPlan)}
    for considered in (found, everything):
        labels = [p.label for p in considered.kept]
        assert len(set(labels)) == len(labels) > len({p.shape for p in considered.kept})
    assert all(abs(p.stages - planned[p.shape].stages) <= 1 for p in found.kept)
    assert {planned[p.shape].label for p in found.kept} <= {p.label for p in found.kept}
    assert {p.label for p in (*found.kept, *found.pruned)} == {p.label for p in everything.kept}


def test_the_measured_best_of_every_committed_result_is_kept() -> None:
    """Forced plans, timed side by side in one process."""
    seen = 0
    for file in (*RESULTS.glob("graphs-*.jsonl"), *RESULTS.glob("exploration/12-*.jsonl")):
        times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        shapes = {s.name for s in (*planner.SHAPES, *planner.SHAPES_OF_TWO)}
        for row in map(json.loads, file.read_text().splitlines()):
            if row["record"] == "row" and row.get("us") and row["provider"] in shapes:
                times[row["workload"]][row["provider"]].append(row["us"])
        for workload, of_plan in times.items():
            w = workloads.by_name(workload)
            best = min(of_plan, key=lambda name: median(of_plan[name]))
            kept = {p.shape.name for p in candidates(spec_of(w), "h200", w.m).kept}
            assert best in kept, f"{file.name}: {workload}"
            seen += 1
    assert seen > 12
