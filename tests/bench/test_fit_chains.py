"""The constants of chains are found again in times that the model itself made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tabulate", reason="needs the bench extra")

import bench.__main__ as bench
from bench import attention
from bench.direct import spec_of
from bench.page import files, fit_chains, model
from bench.report import Row, record, write
from bench.workloads import B2B
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import GPUS
from comfuse.generator.plan.chain import ChainPlan, chain_candidates
from comfuse.generator.plan.constants import CHAINS

OWN = GPUS["h200"]
CHANGES = (1.05, 0.9, 1.1, 1.2, 0.95, 1.15, 0.85, 1.25)
TRUTH = OWN.calibrated(
    {
        name: by * value
        for (name, value), by in zip(
            ((n, v) for n, v in OWN.constants.values().items() if n.startswith(CHAINS)), CHANGES, strict=True
        )
    }
)


def head(experiment: str) -> dict[str, Any]:
    return {"record": "header", "experiment": experiment, "gpu": {"name": "NVIDIA H200"}}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("results")
    rows, heads = [], []
    for w in B2B:
        spec = spec_of(w)
        assert isinstance(spec, ChainSpec)
        for plan in chain_candidates(spec, OWN, w.m):
            if isinstance(plan, ChainPlan):
                us = fit_chains.Timed(w.name, plan, w.m, 1.0).predicted_us(TRUTH)
                rows.append(record(Row(w.name, f"chain-{plan.shape.name}", 0, us=us, plan=plan.shape.name)))
    case = attention.CASES[0]
    for plan in attention.plans(case):
        us = fit_chains.Timed(case.name, plan, case.heads * case.length, 1.0).predicted_us(TRUTH)
        heads.append({"record": "attention", "case": case.name, "provider": plan.shape.name, "us": us})
    heads.append({"record": "attention", "case": case.name, "provider": "comfuse", "us": 1.0})
    heads.append({"record": "attention", "case": "gone", "provider": "2x64-b1-shared", "us": 1.0})
    paths = [folder / "b2b.jsonl", folder / "attention.jsonl"]
    write(paths[0], [head("b2b"), *rows])
    write(paths[1], [head("attention"), *heads])
    return paths


def test_constants_are_found_again(made_up: list[Path]) -> None:
    timed = fit_chains.timed_in(files.read(made_up))
    assert len({t.workload for t in timed}) == len(B2B) + 1
    fitted = fit_chains.fit(OWN, timed)
    for name, value in fitted.constants.values().items():
        loose = 0.02 if name.startswith(CHAINS) else 0.0
        assert value == pytest.approx(TRUTH.constants.values()[name], rel=loose), name
    everything = fit_chains.check(OWN, fitted, timed)[-1]
    assert len(everything.errors) == len(timed)
    assert max(map(abs, everything.errors)) < 0.002
    assert everything.loss == 0.0


def test_points_of_chains_say_their_plan(made_up: list[Path]) -> None:
    points = model.points(files.read(made_up))
    assert {p.family for p in points} == {"b2b", "attention"}
    assert {p.schedule for p in points} == {"chain"}
    attended = [p for p in points if p.family == "attention"]
    assert [p.plan for p in attended] == [p.provider for p in attended]
    assert attended[0].lines == (2,)


def test_the_command(made_up: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["fit-chains", *map(str, made_up)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in OWN.constants.values() if name.startswith(CHAINS))
    assert "left out" in said
    assert said.splitlines()[-1].startswith("| all ")
    assert bench.main(["model-error", *map(str, made_up)]) == 0
    assert "attention" in capsys.readouterr().out


def test_too_little_to_fit(made_up: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["fit-chains", str(made_up[1])]) == 2
    assert "at least two chains" in capsys.readouterr().err
    assert bench.main(["fit-chains", str(tmp_path / "none.jsonl")]) == 2
    odd = tmp_path / "odd.jsonl"
    odd.write_text(json.dumps({"record": "row"}))
    assert bench.main(["fit-chains", str(odd)]) == 2
