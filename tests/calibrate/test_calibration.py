"""What is kept of a calibration, who plans with it, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from comfuse import calibration, cli, explain
from comfuse.calibrate import Probe, on_gpu, probes
from comfuse.calibration import Calibration
from comfuse.cli.doctor import findings
from comfuse.errors import CalibrationError, PlanError
from comfuse.generator import catalog
from comfuse.generator.emit import emit
from comfuse.generator.plan import plan
from comfuse.generator.plan.gpus import find
from comfuse.generator.spec import DType
from comfuse.inductor.hook import ComFusePass
from comfuse.inductor.policy import Policy
from comfuse.ops import native, region_out, resolver

from .test_calibrate import OWN, Synthetic, changed

SPEC = catalog.layernorm(1024, 1024, DType.BF16)
# Pingpong is of no use on a GPU like this.
SLOW = {"efficiency_pingpong_128": 0.1, "efficiency_pingpong2_128": 0.1, "efficiency_pingpong_64": 0.1}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMFUSE_CALIBRATION", str(tmp_path))
    return tmp_path


def made(gpu: str = "h200", **values: float) -> Calibration:
    return Calibration(gpu, "Card", "1.0", "2026-01-02", values, 0.1, 0.02)


def test_what_is_kept_is_read_and_changes_plans() -> None:
    assert calibration.gpu("h200") == OWN
    before = plan(SPEC, calibration.gpu("h200"), 16384)
    file = calibration.write(made(**SLOW))
    assert calibration.read("h200") == made(**SLOW)
    after = plan(SPEC, calibration.gpu("h200"), 16384)
    assert (before.schedule, after.schedule) == ("pingpong", "cooperative")
    assert before == plan(SPEC, "h200", 16384)  # by its name alone a GPU is the planner's
    file.unlink()
    assert calibration.gpu("h200") == OWN


def test_each_number_of_processors_has_its_own() -> None:
    calibration.write(made("h100:114", bandwidth=1.9e12))
    assert calibration.gpu("h100:114").bandwidth == 1.9e12
    assert calibration.gpu("h100:114").processors == 114
    assert calibration.gpu("h100") == find("h100")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{", "Expecting"),
        ('{"format": 2}', "format 2, this ComFuse reads 1"),
        ('{"format": 1}', "missing"),
        (json.dumps({"format": 1, **vars(made("h100"))}), "is of the GPU h100, not h200"),
        (json.dumps({"format": 1, **vars(made(speed=1.0))}), "unknown constant 'speed', known: "),
        (json.dumps({"format": 1, **vars(made(launch_us=-1.0))}), "launch_us is -1.0; allowed: positive"),
        (json.dumps({"format": 1, **vars(made(flops=0.0))}), "flops is 0.0; allowed: positive"),
        (json.dumps({"format": 1, **vars(made()), "error": None}), "error is None; allowed: a number"),
        (
            json.dumps({"format": 1, **vars(made()), "error_before": "x"}),
            "error_before is 'x'; allowed: a num",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(text: str, reason: str) -> None:
    calibration.path("h200").write_text(text)
    with pytest.raises(CalibrationError, match=f"(?s)h200.json.*{reason}.*comfuse calibrate") as e:
        calibration.gpu("h200")
    assert not isinstance(e.value, PlanError)
    (line,) = (f for f in findings() if f.what == "calibration")
    assert line.ok is False
    assert reason in line.found


def test_the_caches_of_plans_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "planner_gpu", lambda device: "h200")
    uuid, gpu = ComFusePass(Policy(gpu="h200")).uuid(), resolver.calibrated_gpu(0)
    assert ComFusePass(Policy(gpu="h200")).uuid() == uuid
    calibration.write(made(launch_us=50.0))
    assert ComFusePass(Policy(gpu="h200")).uuid() != uuid
    assert resolver.calibrated_gpu(0) != gpu  # which its refusals are kept by


def test_explanations_and_the_doctor_say_so() -> None:
    own = str(explain(SPEC, 16384))
    calibration.write(made(launch_us=50.0, **SLOW))
    text = str(explain(SPEC, 16384))
    assert "kernel for h200\n" in own
    assert "kernel for h200, as calibrated 2026-01-02\n" in text
    assert "cooperative" in text
    lines = {f.what: f for f in findings()}
    assert lines["calibration"].ok
    assert "median error 2.0 %, 2026-01-02" in lines["calibration"].found
    assert lines["  launch_us"].found == "5.4 -> 50"


def test_the_command(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    truth = OWN.calibrated(changed(6) | {"flops": 7.0e14})
    monkeypatch.setattr(on_gpu, "GpuTimer", lambda rounds, say: Synthetic(truth))
    monkeypatch.setattr(resolver, "planner_gpu", lambda device: "h200")
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Card")
    result = CliRunner().invoke(cli.main, ["calibrate", "--rounds", "1"])
    assert result.exit_code == 0, result.output
    assert "Card, planned for as h200" in result.output
    assert "7.88e+14 -> 7e+14" in " ".join(result.output.split())
    assert f"kept in {folder / 'h200.json'}" in result.output
    found = calibration.gpu("h200")
    assert found.constants.launch_us == pytest.approx(truth.constants.launch_us, rel=0.01)


def test_each_kernel_is_called_as_its_program_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reference, on few rows: what is passed fits, and all of the results are finite."""
    registered: list[tuple[str, int]] = []
    monkeypatch.setattr(native, "register_program", lambda text: None)
    monkeypatch.setattr(native, "register", lambda text, kernel, low, high: registered.append((text, high)))
    results: list[torch.Tensor] = []
    monkeypatch.setattr(
        on_gpu,
        "region_out",
        lambda text, a, b, operands, scalars, out: (
            region_out(text, a, b, operands, scalars, out),
            results.extend(out),
        ),
    )
    plans = {probe.plan.spec: probe.plan for probe in probes(OWN) if probe.plan.spec.k <= 512}
    for spec, chosen in plans.items():
        on_gpu.launch(Probe(chosen, 4), None, torch.device("cpu"))()  # type: ignore[arg-type]
        assert registered.pop() == (spec.text(), chosen.max_m or 2**31 - 1)
    assert len(results) == sum(len(spec.outputs) for spec in plans)
    assert len(plans) > 6
    assert all(bool(result.isfinite().all()) for result in results)


def test_the_command_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(cli.main, ["calibrate"])
    assert result.exit_code == 1
    assert "the current GPU is none: there is no CUDA device; allowed: a Hopper GPU" in result.output
    assert "without a GPU the planner goes by its own" in result.output
    assert not list(folder.iterdir())


def test_the_number_of_kernels_that_is_said() -> None:
    kernels = {emit(probe.plan).name for probe in probes(find("h200"))}
    assert 25 < len(kernels) < 35
    assert "some thirty small kernels" in CliRunner().invoke(cli.main, ["calibrate", "--help"]).output
