"""One small program, tuned on the GPU, and run by what was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from comfuse import ops
from comfuse.build import BuiltKernel, build
from comfuse.generator import catalog
from comfuse.generator.emit import KernelSource, emit
from comfuse.generator.spec import DType
from comfuse.library import tuned
from comfuse.library.tuned import table
from comfuse.ops import resolver
from comfuse.tune import GpuRunner, Target, tune
from comfuse.tune.problem import Problem

pytestmark = pytest.mark.gpu

# A width that no other test has: what the binding knows of a program lasts as long as the process.
SPEC = catalog.layernorm(544, 264, DType.BF16, bias=DType.BF16, residual=DType.BF16)


@pytest.fixture(scope="module")
def tuned_once() -> tuple[GpuRunner, list]:
    runner = GpuRunner()
    return runner, [tune(Target("layernorm", SPEC, (m,)), runner, looks=(6, 12)) for m in (1000, 5000)]


def test_every_plan_is_right_and_one_is_chosen(tuned_once) -> None:
    runner, outcomes = tuned_once
    for outcome, rows in zip(outcomes, (2048, None), strict=True):
        assert not outcome.failures
        entry, race = outcome.entry, outcome.race
        assert (entry.gpu, entry.rows) == (resolver.planner_gpu(runner.device.index), rows)
        assert entry.device == torch.cuda.get_device_name()
        assert set(race.samples) == {p.label for p in outcome.candidates.kept}
        assert entry.best.us == pytest.approx(race.us(race.winner), abs=1e-3)
        assert 0.5 * outcome.candidates.kept[0].floor_us < entry.best.us < 1000
        assert 0 < entry.error <= entry.allowed


def test_what_was_chosen_is_what_runs(tuned_once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, outcomes = tuned_once
    path = tmp_path / "tuned.json"
    table.update(path, [outcome.entry for outcome in outcomes])
    monkeypatch.setenv("COMFUSE_TUNED", str(path))
    built: list[str] = []

    def record(source: KernelSource) -> BuiltKernel:
        built.append(source.plan.label)
        return build(source)

    monkeypatch.setattr(resolver, "build", record)
    for m, outcome in zip((1000, 5000), outcomes, strict=True):
        assert tuned.plan(SPEC, runner.gpu, m).label == outcome.entry.best.label
        p = Problem.of(SPEC, (m,), runner.device)

        def launch(out, p=p) -> None:
            found = ops.region(SPEC.text(), p.a, p.b[0], p.operands, p.scalars)
            for into, y in zip(out, found, strict=True):
                into.copy_(y)

        p.check(launch)
    assert built == [outcome.entry.best.label for outcome in outcomes]


def test_exhaustive_times_all_plans_in_all_rounds(tuned_once) -> None:
    runner, _ = tuned_once
    target = Target("layernorm", SPEC, (1000,))
    outcome = tune(target, runner, exhaustive=True, looks=(4,))
    assert {len(times) for times in outcome.race.samples.values()} == {4}
    assert len(outcome.race.samples) == len(target.candidates(runner.gpu, exhaustive=True).kept)


def sources_ahead() -> list:
    """For `python -m tests.gpu.build`."""
    return [
        emit(plan)
        for m in (1000, 5000)
        for plan in Target("layernorm", SPEC, (m,)).candidates("h200", exhaustive=m == 1000).kept
    ]
