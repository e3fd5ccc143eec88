"""What the pass adds to a compile: the record of one step, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the dev or the bench extra")
pytest.importorskip("tabulate", reason="needs the bench extra")

from bench.models import pass_time
from bench.workloads.models import select_models


def test_both_compiles_of_a_step_are_timed_and_no_kernel_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import CppCodeCache

    monkeypatch.setattr(CppCodeCache, "load_async", lambda *a, **k: pytest.fail("a kernel is compiled"))
    before = torch.backends.mha.get_fastpath_enabled()
    record = pass_time.measure(select_models(["graph_network-training"])[0])
    torch.backends.mha.set_fastpath_enabled(before)
    assert (record["graphs"], record["gemms"]) == (2, 6)
    assert record["fused"] > 0
    for state in pass_time.STATES:
        assert 0 < record[state]["pass_seconds"] < record[state]["torch_seconds"]
    (line,) = pass_time.table([record]).splitlines()[2:]
    assert line.count("%") == 2
    assert "graph_network-training" in line


def test_a_workload_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = {"record": "pass-time", "workload": "gpt2-inference", "failure": "no end within 400 s"}
    monkeypatch.setattr(pass_time, "_measured", lambda name: failed | {"workload": name})
    assert pass_time.main(["--workloads", "gpt2-inference", "--output", str(tmp_path)], tmp_path) == 1
    (file,) = tmp_path.glob("pass_time-*.jsonl")
    assert "no end within" in file.read_text()
    assert pass_time.main(["--workloads", "resnet"], tmp_path) == 2
