"""Which regions are fused: as measured where it was measured, and by the model everywhere else."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench import direct, programs
from bench.page import changed
from bench.workloads import ChainWorkload, NormWorkload, Workload, by_name
from comfuse import calibration
from comfuse.frontend import trace_region
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import force as force_shape
from comfuse.generator.plan import gpus, plan, program
from comfuse.generator.plan.chain import MARGIN, force_chain
from comfuse.generator.plan.kernel_plan import shapes
from comfuse.generator.spec import DType, FusedSpec, Node, Output
from comfuse.inductor import choose, estimate, measured
from comfuse.inductor.measured import Correction, Kind, Row
from comfuse.inductor.policy import Policy
from comfuse.ops import resolver
from tests.inductor.regions import found, half

RESULTS = Path(__file__).parents[2] / "bench" / "results"
FILES = {
    "graphs": "graphs-20261130-235321-23a5cd4",
    "rmsnorm": "rmsnorm-20261130-215351-4511c29",
    "postnorm": "postnorm-20261130-234330-23a5cd4",
    "narrow": "narrow-20261130-234906-23a5cd4",
    "plain_gemm": "plain_gemm-20261129-210955-621ddbf",
    "b2b": "b2b-20261201-142637-8517e24",
}
#: Of kernels that have changed since, by workload.
LATER = {
    "graphs-rmsnorm-8192x4096x4096": "graphs-20261201-063945-1235ada",
    "graphs-rmsnorm-8192x3584x4096": "graphs-20261201-063945-1235ada",
    "postnorm-16384x1024x4096": "postnorm-20261201-063903-1235ada",
    "postnorm-8192x4096x4096": "postnorm-20261201-063903-1235ada",
}
H200 = gpus.find("h200")
ROWS = [pytest.param(row, id=row.workload) for row in measured.ROWS]


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


@lru_cache
def spec_of(name: str) -> FusedSpec | ChainSpec:
    """The region that the bench measured."""
    if name.startswith("plain_gemm"):
        m, n, k = map(int, name.rsplit("-", 1)[1].split("x"))
        return trace_region(F.linear, [meta(m, k), meta(n, k)]).spec
    workload = by_name(name)
    if isinstance(workload, ChainWorkload):
        return direct.spec_of(workload)
    return trace_region(programs.program(workload), list(inputs(workload))).spec


def inputs(w: Workload) -> tuple[Tensor | None, ...]:
    if not isinstance(w, NormWorkload):
        return programs.make_inputs(w, device="meta").tensors()
    bias = meta(w.n) if w.bias else None
    residual = meta(w.m, w.n) if w.residual else None
    shift = meta(w.n) if w.norm == "layernorm" else None
    return meta(w.m, w.k), meta(w.n, w.k), bias, residual, meta(w.n), shift


def file_of(row: Row) -> str:
    return LATER.get(row.workload) or FILES[row.workload.split("-")[0]]


def rows_of(row: Row) -> list[dict[str, Any]]:
    """What the results have of the workload."""
    workload = row.workload.replace("plain_gemm", "postnorm")
    lines = (RESULTS / f"{file_of(row)}.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["record"] == "row" and r["workload"] == workload]


def times(row: Row) -> dict[str, float]:
    """Median times by provider."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in rows_of(row):
        if record["us"]:
            found[record["provider"]].append(record["us"])
    return {provider: median(us) for provider, us in found.items()}


def predicted(row: Row, spec: FusedSpec | ChainSpec, m: int) -> float:
    """What the planner says of the kernel that ran, where the results name it; else of its choice."""
    names = {r.get("plan") for r in rows_of(row) if r["provider"] == "comfuse"}
    for shape in shapes(spec) if isinstance(spec, FusedSpec) else ():
        if shape.name in names:
            return force_shape(spec, shape, "h200", m).predicted_us
    return program.plan(spec, "h200", m).predicted_us


def held(row: Row) -> bool:
    """Whether its prediction is of the kernel as it is today; of a chain it always is."""
    return row.kind is Kind.CHAIN or changed.reason(file_of(row), row.workload) is None


def gemm(spec: FusedSpec) -> FusedSpec:
    return FusedSpec(spec.n, spec.k, DType.BF16, (), (Node("acc", "gemm"),), (Output("y", 0, DType.BF16),))


@pytest.mark.parametrize("row", ROWS)
def test_what_is_said_to_be_measured_stands_in_the_results(row: Row) -> None:
    us = times(row)
    own = [us[p] for p in us if p == "comfuse" or p.startswith("own-")]
    inductor = [us[p] for p in us if p.startswith("inductor")]
    assert row.gemm_us == pytest.approx(us["mm"], abs=0.06)
    assert row.fused_us == pytest.approx(min(own), abs=0.06)
    assert row.unfused_us == (pytest.approx(min(inductor), abs=0.06) if inductor else None)


@pytest.mark.parametrize("row", ROWS)
def test_what_is_said_to_be_predicted_is_predicted(row: Row) -> None:
    m, n, k, *more = row.shape
    spec = spec_of(row.workload)
    links = spec.links if isinstance(spec, ChainSpec) else (spec,)
    assert (links[0].n, links[0].k) == (n, k)
    assert [link.n for link in links[1:]] == more
    if held(row):
        assert row.predicted_us == pytest.approx(predicted(row, spec, m), rel=0.04)
    alone = sum(link.products * plan(gemm(link), "h200", m).predicted_us for link in links)
    assert row.predicted_gemm_us == pytest.approx(alone, rel=0.04)


@pytest.mark.parametrize("row", ROWS)
def test_the_model_is_near_to_what_was_measured(row: Row) -> None:
    found = estimate.estimate(spec_of(row.workload), row.shape[0])
    assert found.kind is row.kind
    if held(row):
        assert found.fused_us == pytest.approx(row.fused_us, rel=0.08)
    # One that is faster than torch.mm alone beside it, which it contains, no model can know.
    if row.unfused_us is not None and row.unfused_us > row.gemm_us:
        # It may be too kind to TorchInductor, but not too unkind; the links of a chain may be fused apart.
        kindest = 0.5 if row.kind is Kind.CHAIN else 0.65
        # A class has one factor for the library's GEMM, the mean of its rows', which may be above this row's.
        above = measured.correction(H200, row.kind, *row.shape[1:]).gemm / row.gemm - 1
        unkindest = 1.03 * row.unfused_us + max(0.0, above) * row.gemm_us
        assert kindest * row.unfused_us < found.unfused_us < unkindest


@pytest.mark.parametrize("row", [r for r in measured.ROWS if r.unfused_us], ids=lambda r: r.workload)
def test_where_both_were_measured_the_faster_is_chosen(row: Row) -> None:
    assert row.unfused_us is not None
    found = estimate.estimate(spec_of(row.workload), row.shape[0])
    if row.kind is not Kind.CHAIN:
        faster = found.slower is None and found.fused_us < choose.MARGIN * found.unfused_us
        assert faster == (row.fused_us < row.unfused_us)
    else:  # a chain competes with its links fused apart, which the bench does not run
        as_measured = row.fused_us < min(row.unfused_us, MARGIN * found.unfused_us)
        assert (found.fused_us < MARGIN * found.unfused_us) == as_measured


CHAIN_ROWS = [row for row in measured.ROWS if row.kind is Kind.CHAIN]


def test_chains_that_are_chosen() -> None:
    """Those whose time is far below what their links take; of the others only times decide."""
    times = {row.workload: estimate.estimate(spec_of(row.workload), row.shape[0]) for row in CHAIN_ROWS}
    chosen = {name for name, found in times.items() if found.fused_us < MARGIN * found.unfused_us}
    assert chosen >= {"b2b-262144x128x128x128", "b2b-1048576x64x256x64"}


@pytest.mark.parametrize("row", CHAIN_ROWS, ids=lambda row: row.workload)
def test_products_alone_are_as_fast_apart_as_measured(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """So two with nothing between them are one kernel only where that beats two of a library."""
    m, h, k, n = row.shape
    bare = ChainSpec((catalog.linear(h, k, DType.BF16), catalog.linear(n, h, DType.BF16)))
    monkeypatch.setattr(estimate, "plan", force)  # whatever its kernels take apart
    assert estimate.estimate(bare, m).unfused_us <= 1.01 * row.gemm_us


def force(spec: FusedSpec | ChainSpec, gpu: gpus.Gpu, m: int) -> Any:
    return force_chain(spec, None, gpu, m) if isinstance(spec, ChainSpec) else plan(spec, gpu, m)


@pytest.mark.parametrize(
    "m, n, k, function, template, fused",
    [
        (16384, 1024, 1024, "layer_norm", False, True),
        (16384, 1024, 1024, "layer_norm", True, True),
        (327680, 512, 512, "layer_norm", False, True),
        (1, 4096, 4096, "layer_norm", False, False),  # a library divides K where there are few tiles
        (16384, 4096, 1024, "gelu", False, True),
        (16384, 4096, 1024, "gelu", True, True),  # TorchInductor's own GEMMs are slower than the library's
        (16, 4096, 4096, "gelu", True, False),
        (16384, 4096, 1024, "linear", False, False),  # nothing to gain
        (16, 4096, 4096, "gelu", False, False),
    ],
)
def test_the_model_elsewhere(m: int, n: int, k: int, function: str, template: bool, fused: bool) -> None:
    functions: dict[str, Any] = {
        "layer_norm": lambda x, w, b: F.layer_norm(F.linear(x, w, b), (n,)),
        "gelu": lambda x, w, b: F.gelu(F.linear(x, w, b)),
        "linear": F.linear,
    }
    spec = trace_region(functions[function], [meta(m, k), meta(n, k), meta(n)]).spec
    found = estimate.estimate(spec, m, template=template)
    assert (found.fused_us < choose.MARGIN * found.unfused_us) == fused, found


def test_a_class_that_was_slower_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Row("graphs-slow-8192x64x64", Kind.ROWS, 10.0, 20.0, 15.0, 10.0, 20.0)
    monkeypatch.setattr(measured, "ROWS", (slow,))
    assert measured.correction(H200, Kind.ROWS, 64, 50).slower == slow.workload
    assert measured.correction(H200, Kind.ROWS, 64, 128).slower is None
    assert measured.correction(H200, Kind.COLUMNS, 64, 64) == Correction()
    region = found(lambda x, w: F.layer_norm(x @ w, (64,)), half(256, 64), half(64, 64))
    verdict = choose.verdict(region, Policy(gpu="h200"))
    assert not verdict.fused
    assert slow.workload in verdict.reason
    assert choose.verdict(region, Policy(gpu="h200", force=True)).fused


def test_unmeasured_classes_inherit_only_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Row("graphs-fast-8192x64x64", Kind.ROWS, 10.0, 15.0, 30.0, 10.0, 20.0)
    monkeypatch.setattr(measured, "ROWS", (fast,))
    assert measured.correction(H200, Kind.ROWS, 64, 64).excess_ps < 0
    assert measured.correction(H200, Kind.ROWS, 64, 1024).excess_ps == 0


#: As `comfuse calibrate` would have it on an H200 where everything takes a fifth longer than predicted.
CALIBRATED = H200.calibrated({"flops": H200.flops / 1.2, "bandwidth": H200.bandwidth / 1.2})


@pytest.mark.parametrize("row", ROWS)
def test_what_is_predicted_otherwise_than_measured_rows_is_not_corrected(row: Row) -> None:
    """Else what was calibrated away would be corrected again, or an H200's error be taken for another's."""
    own, m = spec_of(row.workload), row.shape[0]
    for gpu in (CALIBRATED, gpus.find("h100"), gpus.find("h200:114")):
        found = estimate.estimate(own, m, gpu=gpu)
        predicted = sum(p.predicted_us for p in found.plans)
        assert found.fused_us == pytest.approx(max(predicted, sum(p.floor_us for p in found.plans)))
        assert measured.correction(gpu, row.kind, *row.shape[1:]).gemm == 1.0
    corrected = measured.correction(H200, row.kind, *row.shape[1:])
    assert corrected != Correction()
    assert measured.correction(H200.calibrated(H200.calibration()), row.kind, *row.shape[1:]) == corrected


def test_losses_count_on_the_gpu_where_they_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of times alone, whatever was predicted."""
    slow = Row("graphs-slow-8192x64x64", Kind.ROWS, 10.0, 20.0, 15.0, 9.0, 16.0)
    monkeypatch.setattr(measured, "ROWS", (slow,))
    assert measured.correction(CALIBRATED, Kind.ROWS, 64, 64) == Correction(slower=slow.workload)
    for other in ("h100", "h200:114"):
        assert measured.correction(gpus.find(other), Kind.ROWS, 64, 64) == Correction()


def test_a_calibrated_gpu_is_decided_for_without_corrections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFUSE_CALIBRATION", str(tmp_path))
    region = found(norm, half(16384, 1024), half(1024, 1024), half(16384, 1024))
    own = choose.verdict(region, Policy(gpu="h200")).predicted_us
    values = {"flops": H200.flops / 1.2}
    made = calibration.Calibration("h200", "NVIDIA H200", "0", "2026-12-01", values, 0.2, 0.02)
    calibration.write(made)
    assert own != pytest.approx(plan(region.lowered.spec, H200, 16384).predicted_us)
    predicted = plan(region.lowered.spec, H200.calibrated(values), 16384).predicted_us
    assert choose.verdict(region, Policy(gpu="h200")).predicted_us == pytest.approx(predicted)


# --- verdicts -------------------------------------------------------------------------------------------


def norm(x: Tensor, w: Tensor, residual: Tensor) -> Tensor:
    return F.layer_norm(x @ w + residual, (w.shape[1],))


def test_a_verdict_has_both_times_and_what_the_region_is() -> None:
    region = found(norm, half(512, 256), half(256, 512), half(512, 512))
    verdict = choose.verdict(region, Policy(gpu="h200"))
    assert verdict.shape == (512, 512, 256)
    assert verdict.location is not None
    assert verdict.location.split("/")[-1].startswith("test_choose.py:")
    assert (verdict.nodes, verdict.outputs) == (len(region.candidate.nodes), 1)
    assert verdict.reductions > 0
    assert verdict.predicted_us is not None
    assert verdict.unfused_us is not None
    assert verdict.fused == (verdict.predicted_us < choose.MARGIN * verdict.unfused_us)
    assert FusedSpec.parse(verdict.spec) == region.lowered.spec
    assert verdict.kernels == (((verdict.spec, 512),) if verdict.fused else ())


@pytest.mark.parametrize("reader, drawn", [("none", True), ("saved", True), ("kernel", False)])
def test_a_mask_for_the_region_alone_takes_a_kernel_of_its_own(reader: str, drawn: bool) -> None:
    m, n = 16384, 512
    readers: dict[str, Any] = {"none": lambda mask: (), "saved": lambda mask: (mask,), "kernel": _cumulated}

    def masked(x: Tensor, w: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        mask = (torch.rand(m, n) > 0.1) if given.dim() == 1 else given
        return ((x @ w).relu() * mask, *readers[reader](mask))

    factors = half(m, 256), half(256, n)
    read = choose.verdict(found(masked, *factors, torch.ones(m, n, dtype=torch.bool)), Policy(gpu="h200"))
    made = choose.verdict(found(masked, *factors, torch.ones(1)), Policy(gpu="h200"))
    assert made.spec == read.spec
    assert made.unfused_us == read.unfused_us
    assert made.predicted_us is not None
    assert read.predicted_us is not None
    # A launch, and a byte for each element.
    expected = 2.0 + 1e6 * m * n / gpus.find("h200").bandwidth if drawn else 0.0
    assert made.predicted_us - read.predicted_us == pytest.approx(expected, abs=1e-6)


def _cumulated(mask: Tensor) -> tuple[Tensor]:
    return (mask.cumsum(0),)


def test_where_there_is_no_gain_the_verdict_says_so() -> None:
    region = found(lambda x, w, b: F.linear(x, w, b), half(512, 256), half(512, 256), half(512))
    verdict = choose.verdict(region, Policy(gpu="h200"))
    assert not verdict.fused
    assert f"{verdict.predicted_us:.1f} us" in verdict.reason
    assert f"{verdict.unfused_us:.1f} us" in verdict.reason
    assert choose.verdict(region, Policy(gpu="h200", force=True)).fused


def test_symbolic_rows_are_decided_by_their_hint_and_planned_for_all_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = found(norm, half(600, 256), half(256, 512), half(600, 512), dynamic=(0, 2))
    assert region.dynamic
    assert choose.rows(region) == 600
    assert choose.row_classes(region) == (*resolver.M_CLASSES, None)
    planned = []

    def note(spec: FusedSpec, gpu: str, m: int | None = None) -> Any:
        planned.append(m)
        return plan(spec, gpu, m)

    monkeypatch.setattr(choose, "plan", note)
    verdict = choose.verdict(region, Policy(gpu="h200"))
    assert planned == [*resolver.M_CLASSES, None]
    assert isinstance(verdict.shape[0], str)
    assert verdict.shape[1:] == (512, 256)


def test_a_region_that_no_kernel_runs_is_left_even_if_forced() -> None:
    wide = 132 * 256 * 2  # more columns than all SMs together can hold of a row
    region = found(lambda x, w: torch.softmax(x @ w, -1), half(64, 16), half(16, wide))
    verdict = choose.verdict(region, Policy(gpu="h200", force=True))
    assert not verdict.fused
    assert "tile shape" in verdict.reason
    assert verdict.predicted_us is None


def test_decisions_do_not_depend_on_the_machine() -> None:
    assert choose.gpu_name(Policy(gpu="h200")) == "h200"
    region = found(norm, half(16384, 256), half(256, 512), half(16384, 512))
    assert choose.verdict(region, Policy(gpu="h200")) == choose.verdict(region, Policy(gpu="h200"))
    fewer = choose.verdict(region, Policy(gpu="h200:60")).predicted_us
    most = choose.verdict(region, Policy(gpu="h200")).predicted_us
    assert fewer is not None
    assert most is not None
    assert fewer > most
