"""The benchmark's own arithmetic and its way with failures, on a CPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("tabulate", reason="needs the bench extra")

from bench import plain_gemm, processes, programs, providers, report, verify, workloads
from bench.report import Row
from bench.workloads import POSTNORM, RMSNORM, NormWorkload


def _small(w: NormWorkload) -> NormWorkload:
    return dataclasses.replace(w, m=200, n=64, k=32)


PROGRAMS = [_small(w) for w in (POSTNORM[0], RMSNORM[0], RMSNORM[4], RMSNORM[9])]


def test_names_are_unique_within_a_family() -> None:
    for family in workloads.FAMILIES.values():
        assert len({w.name for w in family}) == len(family)
        assert all(workloads.by_name(w.name) is w for w in family)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="1x2x3"):
        workloads.select("postnorm", ["1x2x3"])
    with pytest.raises(ValueError, match="prenorm"):
        workloads.select("prenorm")
    with pytest.raises(ValueError, match="cudnn"):
        providers.select(("cudnn",))


def test_mm_is_always_measured() -> None:
    assert [p.name for p in providers.select(("comfuse",))] == ["mm", "comfuse"]
    assert len(providers.select(("plans",))) == 1 + len(providers.PLANS)


def test_clusters_along_m_are_there_by_name() -> None:
    """Beside the plans that the planner chooses among; without an epilogue too."""
    names = {p.name for p in providers.ALONG_M}
    assert "cooperative-128x256-m2" in names
    assert not names & {p.name for p in providers.PLANS}
    provider = providers.by_name("own-cooperative-128x256-m2")
    assert provider.source is not None
    assert "_c2x1_" in provider.source(workloads.POSTNORM[0]).name


def test_floors() -> None:
    """By hand: 2 * 16384 * 768 * 768 / 788e12, and (3 * 327680 * 512 + 512 * 512 + 3 * 512) * 2 / 4.27e12."""
    assert POSTNORM[0].floor_us == pytest.approx(24.527, abs=1e-3)
    assert POSTNORM[6].floor_us == pytest.approx(235.869, abs=1e-3)
    assert (POSTNORM[0].floor_bound, POSTNORM[6].floor_bound) == ("flops", "bytes")


@pytest.mark.parametrize("w", PROGRAMS, ids=lambda w: f"{w.norm}-{w.residual}-{w.weight_offset:g}")
def test_programs_trace_whole_and_verify(w: NormWorkload) -> None:
    inputs = programs.make_inputs(w, device="cpu")
    reference = verify.Reference(w, inputs)
    compiled = torch.compile(programs.program(w), backend="aot_eager", fullgraph=True, dynamic=False)
    (error,) = reference.errors(verify.poisoned(lambda: compiled(*inputs.tensors())))
    (bound,) = reference.bounds(rounds_once=False)
    assert 0 < error <= bound
    (error,) = reference.errors(programs.gemm(inputs), of_gemm=True)
    assert 0 < error < 2e-3
    (error,) = reference.errors(programs.gemm(inputs))
    assert error > 0.1


def test_an_element_that_nobody_writes_is_found() -> None:
    w = PROGRAMS[0]
    inputs = programs.make_inputs(w, device="cpu")
    reference = verify.Reference(w, inputs)
    buffer = programs.program(w)(*inputs.tensors())

    def writes_all_but_one() -> torch.Tensor:
        buffer[:, 1:] = programs.program(w)(*inputs.tensors())[:, 1:]
        return buffer

    assert reference.errors(verify.poisoned(writes_all_but_one)) == [float("inf")]


def _rows(process: int, mm: float, inductor: float, best: float, comfuse: float) -> list[Row]:
    times = {"mm": mm, "inductor": inductor, "inductor-max": best, "comfuse": comfuse}
    return [Row(POSTNORM[0].name, p, process, us=us, error=1e-3, eager_error=3e-3) for p, us in times.items()]


def test_ratios_are_taken_within_a_process() -> None:
    """The second process ran at half the clock; its ratios are what they are all the same."""
    rows = _rows(0, 30, 50, 45, 36) + _rows(1, 60, 100, 90, 72) + _rows(2, 30, 40, 45, 39)
    (s,) = report.summarise(rows)
    assert s.to_mm["comfuse"].median == pytest.approx(1.2)
    assert s.speedup is not None
    assert s.speedup.median == pytest.approx(1.25)
    assert s.speedup.low == pytest.approx(40 / 39)
    assert s.to_floor is not None
    assert s.to_floor.median == pytest.approx(39 / POSTNORM[0].floor_us)
    assert "≤ 1.19 of mm MISSED" in report.table(rows)


def test_losses_and_failures_are_printed() -> None:
    rows = [*_rows(0, 30, 40, 35, 40), Row(POSTNORM[1].name, "comfuse", 0, failure="it broke")]
    text = report.table(rows)
    assert "LOSS" in text
    assert "it broke" in text
    assert "0.875x" in text.splitlines()[-2]  # the geomean, over what was measured


def test_results_can_be_read_again(tmp_path: Path) -> None:
    results = report.Results(tmp_path, {"record": "header", "experiment": "postnorm"})
    for row in _rows(0, 30, 50, 45, 36):
        results.add(report.record(row))
    results.add({"record": "gpu", "clocks.sm": "1980 MHz"})
    head, records = report.read(results.path)
    assert head["experiment"] == "postnorm"
    assert report.rows_of(records) == results.rows
    assert not results.failed
    (tmp_path / "x.jsonl").write_text(json.dumps({"record": "row"}))
    with pytest.raises(ValueError, match="header"):
        report.read(tmp_path / "x.jsonl")


def test_plain_gemm_compares_the_best_of_each_layer() -> None:
    times = {
        "mm": 30.0,
        providers.STOCK[0].name: 32.0,
        providers.STOCK[1].name: 31.0,
        providers.OWN[0].name: 31.5,
    }
    text = plain_gemm.table([Row(POSTNORM[0].name, p, 0, us=us) for p, us in times.items()], [])
    assert f"{31 / 31.5:.3f}" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="the failure is that there is no GPU")
def test_a_process_that_dies_costs_its_workload_alone(tmp_path: Path) -> None:
    records: list[dict[str, object]] = []
    names = [w.name for w in POSTNORM[:2]]
    processes.run_process(names, ["mm"], 0, 1, tmp_path / "log", records.append)
    assert [r["workload"] for r in records] == names
    assert all("Error" in str(r["failure"]) for r in records)
