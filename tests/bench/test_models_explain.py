"""What is written of models that are planned without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the dev or the bench extra")

from bench import __main__ as bench
from bench.models import MODELS, explain


def test_every_model_has_an_inference_and_a_training_step() -> None:
    assert [w.name for w in explain.steps()] == [
        f"{m}-{s}" for m in MODELS for s in ("inference", "training")
    ]
    assert [w.name for w in explain.steps(["gpt2"])] == ["gpt2-inference", "gpt2-training"]
    assert [w.name for w in explain.steps(["olmo2_7b-training"])] == ["olmo2_7b-training"]
    with pytest.raises(ValueError, match="no step or model 'bert'; there are encoder_layer-inference"):
        explain.steps(["bert"])


def test_what_is_written_says_that_it_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMFUSE_CALIBRATION", str(tmp_path))
    arguments = ["models", "--explain", "--workloads", "graph_network-inference", "--output", str(tmp_path)]
    assert bench.main(arguments) == 0
    (file,) = tmp_path.glob("explain-*.txt")
    text = file.read_text()
    assert text.startswith("No GPU: planned on the meta device for the H200")
    assert "torch " in text.splitlines()[2]
    assert "== graph_network-inference" in text
    assert "2 GEMMs, 2 fused" in text
    assert text.count("fused (chain with") == 2
    assert "graph_network-inference: EdgeUpdate: 2 GEMMs, 2 fused" in capsys.readouterr().out
    assert bench.main(["models", "--explain", "--workloads", "none"]) == 2


def test_the_committed_one_has_all_steps() -> None:
    (file,) = Path(bench.RESULTS).glob("explain-*.txt")
    named = [line[3:] for line in file.read_text().splitlines() if line.startswith("== ")]
    assert named == [w.name for w in explain.steps()]
