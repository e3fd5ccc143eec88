"""The family of graphs: their programs, how they are verified, goals against Inductor."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

pytest.importorskip("tabulate", reason="needs the bench extra")

from bench import __main__ as main
from bench import direct, programs, report, verify
from bench.programs.graphs import GRAPHS as FUNCTIONS
from bench.report import Row
from bench.workloads import EPILOGUES, GRAPHS, GraphWorkload, Workload, by_name, select
from comfuse import reference


def _small(w: Workload) -> Workload:
    return dataclasses.replace(w, m=200, n=64, k=32)


SMALL = [_small(w) for w in (*GRAPHS, *EPILOGUES)]


def test_every_function_is_measured() -> None:
    measured = (*GRAPHS, *EPILOGUES)
    assert {w.graph for w in measured if isinstance(w, GraphWorkload)} == set(FUNCTIONS)
    assert all(w.goal is not None and w.against == "inductor" for w in GRAPHS)


def test_a_workload_is_chosen_by_name_or_by_shape() -> None:
    assert [w.name for w in select("graphs", ["graphs-quantise-8192x4096x4096"])] == [
        "graphs-quantise-8192x4096x4096"
    ]
    assert len(select("graphs", ["8192x4096x4096"])) == 2


def test_floors() -> None:
    """By hand, at 788 TFLOP/s and 4.27 TB/s."""
    floors = {w.name: w for w in GRAPHS}
    swiglu = floors["graphs-swiglu-8192x11008x4096"]
    assert swiglu.floor_us == pytest.approx(2 * 2 * 8192 * 11008 * 4096 / 788e6)
    softmax = floors["graphs-softmax-8192x2048x512"]
    assert softmax.floor_us == pytest.approx(2 * 8192 * 2048 * 512 / 788e6)
    assert softmax.bytes_moved == 2 * (8192 * 512 + 2048 * 512 + 8192 * 2048)
    total = floors["graphs-relu_sum-8192x8192x1024"]
    assert total.bytes_moved == 2 * (8192 + 8192) * 1024  # nothing of (M, N) goes to memory


def _results(w: Workload) -> tuple[programs.Inputs, verify.Reference, tuple[torch.Tensor, ...]]:
    inputs = programs.make_inputs(w, device="cpu")
    reference = verify.Reference(w, inputs)
    compiled = torch.compile(programs.program(w), backend="aot_eager", fullgraph=True, dynamic=False)
    return inputs, reference, verify.poisoned(lambda: compiled(*inputs.tensors()))


@pytest.mark.parametrize("w", SMALL, ids=lambda w: w.name)
def test_programs_trace_whole_and_verify(w: Workload) -> None:
    inputs, reference, results = _results(w)
    errors, bounds = reference.errors(results), reference.bounds(rounds_once=False)
    assert all(0 <= e <= b for e, b in zip(errors, bounds, strict=True))
    assert len(errors) == (2 if "gelu_backward" in w.name or "gemma" in w.name or "quant" in w.name else 1)
    assert all(b < 0.1 for b in reference.bounds(rounds_once=True))
    assert len(inputs.gemms()) == w.products
    for a, b in inputs.gemms():
        assert (a.shape, b.shape) == ((w.m, w.k), (w.k, w.n))


@pytest.mark.parametrize("w", SMALL, ids=lambda w: w.name)
def test_every_wrong_output_is_found(w: Workload) -> None:
    """The last element of each output, off by a tenth of the largest; in a row or column of its own."""
    _, reference, results = _results(w)
    bounds = reference.bounds(rounds_once=False)
    for i, x in enumerate(results):
        wrong = [r.clone() for r in results]
        values = x.float()
        values.view(-1)[-1] += 20 * values.abs().max()
        wrong[i] = values
        assert reference.errors(tuple(wrong))[i] > bounds[i]


@pytest.mark.parametrize("w", SMALL, ids=lambda w: w.name)
def test_what_comfuse_is_to_run_is_one_program(w: Workload) -> None:
    spec = direct.spec_of(w)
    assert (spec.n, spec.k, spec.products) == (w.n, w.k, w.products)
    inputs = programs.make_inputs(w, device="cpu")
    x = direct.arguments_of(w, inputs, spec)
    results = reference.evaluate(spec, x.a, x.b, x.operands, x.scalars)
    found = verify.Reference(w, inputs)
    errors, bounds = found.errors(tuple(results)), found.bounds(rounds_once=True)
    assert all(e <= b for e, b in zip(errors, bounds, strict=True))


def test_poison_reaches_outputs_whose_last_dimension_is_one() -> None:
    scale = torch.ones(4).as_strided((4, 1), (1, 0))
    quantised = torch.ones(4, 8).to(torch.float8_e4m3fn)
    spoilt: list[bool] = []

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        spoilt.append(bool(scale.isnan().all() and quantised.float().isnan().all()))
        return scale, quantised

    verify.poisoned(call)
    assert spoilt == [False, True]


def _rows(process: int, **times: float) -> list[Row]:
    names = {"best": "inductor-max"}
    return [
        Row(GRAPHS[0].name, names.get(p, p), process, us=us, error=1e-3, eager_error=3e-3)
        for p, us in times.items()
    ]


def test_goals_against_inductor() -> None:
    met = _rows(0, mm=30, inductor=75, best=60, comfuse=40)
    assert "1.50x met" in report.table(met)
    missed = _rows(0, mm=30, inductor=75, best=60, comfuse=41)
    assert "1.50x MISSED" in report.table(missed)


def test_a_mode_that_ran_once_is_the_baseline_if_it_is_the_faster_one() -> None:
    first = _rows(0, mm=30, inductor=75, best=60, comfuse=40)
    second = _rows(1, mm=60, inductor=150, comfuse=75)
    (s,) = report.summarise(first + second)
    assert s.speedup == report.Spread(1.5, 1.5, 1.5)  # of the first process alone
    first = _rows(0, mm=30, inductor=60, best=75, comfuse=40)
    (s,) = report.summarise(first + second)
    assert s.speedup is not None
    assert (s.speedup.low, s.speedup.high) == (1.5, 2.0)


def test_once_leaves_a_provider_out_of_later_processes(monkeypatch: Any, tmp_path: Any) -> None:
    seen: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(main, "build_all", lambda sources: None)
    monkeypatch.setattr(main, "sources_of", lambda chosen, measured: [])
    monkeypatch.setattr(
        main, "run_process", lambda names, wanted, process, *_: seen.append((process, wanted))
    )
    arguments = ["graphs", "--processes", "2", "--providers", "inductor", "inductor-max"]
    main.main([*arguments, "--once", "inductor-max", "--output", str(tmp_path)])
    assert seen == [(0, ["mm", "inductor", "inductor-max"]), (1, ["mm", "inductor"])]
    assert by_name(GRAPHS[0].name) is GRAPHS[0]
