"""Runs over models: how steps with and without dropout are verified, subsets, the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="needs the dev or the bench extra")
pytest.importorskip("tabulate", reason="needs the bench extra")

from bench.models import MODELS, ahead, main, providers, report
from bench.models.reference import Reference
from bench.models.step import beyond
from bench.report import Row
from bench.workloads.models import MODEL_WORKLOADS, select_models


def test_workloads_are_of_models_and_named_once() -> None:
    assert {w.model for w in MODEL_WORKLOADS} == set(MODELS)
    assert len({w.name for w in MODEL_WORKLOADS}) == len(MODEL_WORKLOADS)
    assert [w.name for w in select_models(["gpt2", "bert_large-training"])] == [
        "bert_large-training",
        "gpt2-inference",
        "gpt2-training",
    ]
    with pytest.raises(ValueError, match="resnet"):
        select_models(["resnet"])


@pytest.fixture
def no_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def _eager(module: nn.Module) -> nn.Module:
    return module


@pytest.mark.usefixtures("no_fast_path")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["encoder_layer", "graph_network"])
def test_a_step_is_held_to_bounds_that_a_wrong_one_breaks(name: str, training: bool) -> None:
    """Eager stands in for the compiler: it draws the same masks from the same seed."""
    model = MODELS[name]
    reference = Reference(model, model.small, training=training, device="cpu", yardstick=_eager)
    assert reference.drawn == (model.dropout and training)
    call = reference.step.call()
    errors = reference.errors(reference.results(call))
    assert beyond(errors, reference.bounds) == []
    assert reference.relative(errors) < 0.02

    wrong = reference.errors(reference.results(lambda: tuple(1.1 * x for x in call())))
    assert any(text.startswith("output") for text in beyond(wrong, reference.bounds))


def test_a_baseline_that_is_off_raises_what_is_allowed_unless_it_is_plainly_wrong() -> None:
    model = MODELS["graph_network"]
    reference = Reference(model, model.small, training=False, device="cpu", yardstick=_eager)
    bound = reference.bounds["output"]
    assert reference.wrong({"output": 1.5 * bound}, baseline=False) != []
    assert reference.wrong({"output": 9 * bound}, baseline=True) != []
    assert reference.wrong({"output": 1.5 * bound}, baseline=False) != []
    assert reference.wrong({"output": 1.5 * bound}, baseline=True) == []
    assert reference.wrong({"output": 1.6 * bound}, baseline=False) == []
    assert reference.wrong({"output": 1.7 * bound}, baseline=False) != []


def test_baselines_are_measured_before_ours() -> None:
    assert [p.name for p in providers.select(["comfuse", "inductor"])] == ["inductor", "comfuse"]


def _rows(process: int, **us: float) -> list[Row]:
    names = {name: name.replace("_", "-") for name in us}
    return [
        Row("bert_large-inference", names[p], process, us=t, error=1e-3, eager_error=2e-3)
        for p, t in us.items()
    ]


def test_the_best_of_ours_is_held_against_the_best_of_theirs() -> None:
    rows = _rows(0, eager=300, inductor=120, inductor_max=115, comfuse=100, comfuse_max=102)
    ratio = report.speedup(rows)
    assert ratio is not None
    assert ratio.median == pytest.approx(1.15)
    assert "1.15x" in report.table(rows)
    assert "1.12x met" in report.table(rows)
    assert "LOSS" in report.table(_rows(0, inductor=100, comfuse=101))


def test_failures_are_listed_and_not_measured() -> None:
    failed = Row("bert_large-inference", "all", 0, failure="the process ended with code 70")
    text = report.table([*_rows(0, inductor=120), failed])
    assert "failed: bert_large-inference all (process 0): the process ended with code 70" in text
    assert report.speedup([failed]) is None


def test_explanations_become_a_file_beside_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def run(
        names: list[str], providers: list[str], process: int, *rest: Any, worker_module: list[str]
    ) -> None:
        asked.append((names, providers, worker_module[0], "--until" in worker_module))
        on_record = rest[2]
        on_record({"record": "explain", "workload": names[0], "text": "a table"})

    monkeypatch.setattr(main, "run_process", run)
    arguments = [
        "--workloads",
        "dlrm_mlp",
        "--providers",
        "eager",
        "--budget",
        "60",
        "--output",
        str(tmp_path),
    ]
    assert main.main(arguments, tmp_path) == 0
    assert asked == [(["dlrm_mlp-training"], ["eager"], "bench.models.worker", True)]
    (rows,) = tmp_path.glob("models-*.jsonl")
    assert rows.with_suffix(".txt").read_text() == "== dlrm_mlp-training\na table\n\n"


@pytest.mark.usefixtures("no_fast_path")
def test_kernels_of_a_model_are_known_without_a_gpu() -> None:
    """One for both products, whose rows are too many for the smaller classes."""
    chosen = select_models(["graph_network-inference"])
    (name,) = {source.name for source in ahead.sources_of(chosen)}
    assert name.startswith("cf_sm90_chain_")
