"""How the GPU's runner treats kernels that fail, each in its way; here the op is the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from comfuse import ops, timing
from comfuse.errors import BuildError, CacheError, DeviceError, LaunchError
from comfuse.generator import catalog
from comfuse.generator.spec import DType, FusedSpec
from comfuse.library.rows import MAX_ROWS
from comfuse.ops import native, resolver
from comfuse.reference import evaluate
from comfuse.tune import runner as module
from comfuse.tune.candidates import candidates
from comfuse.tune.problem import Problem
from comfuse.tune.runner import Contender, Failure, GpuRunner

SPEC = catalog.linear(256, 64, DType.BF16, bias=DType.BF16)
PLANS = candidates(SPEC, "h200", 128).kept


class Binding:
    """What was registered, and what an op then does with its outputs."""

    def __init__(self) -> None:
        self.programs: list[str] = []
        self.kernels: list[tuple[str, Any, int, int]] = []
        self.outcome: Any = None  # of a build, instead of a kernel
        self.spoil: Callable[[Tensor], object] = lambda y: None

    def build_all(self, sources: Sequence[Any], say: object) -> dict[str, Any]:
        return {s.name: self.outcome or f"kernel {s.name}" for s in sources}

    def region_out(
        self, spec: str, a: Tensor, b: Tensor, operands: Any, scalars: Any, out: list[Tensor]
    ) -> None:
        assert spec in [text for text, *_ in self.kernels]
        for y, result in zip(out, evaluate(FusedSpec.parse(spec), a, b, operands, scalars), strict=True):
            y.copy_(result)
            self.spoil(y)


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> Binding:
    fake = Binding()
    monkeypatch.setattr(resolver, "current_gpu", lambda op, hint: 0)
    library = SimpleNamespace(comfuse_copies=lambda slot: 0, comfuse_reset_copies=lambda: None)
    monkeypatch.setattr(native, "load", lambda: library)
    monkeypatch.setattr(native, "register_program", fake.programs.append)
    monkeypatch.setattr(native, "register", lambda *given: fake.kernels.append(given))
    monkeypatch.setattr(resolver, "planner_gpu", lambda index: "h200")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(module.packs, "build_all", fake.build_all)
    monkeypatch.setattr(module.library, "load", lambda built: built)
    monkeypatch.setattr(ops, "region_out", fake.region_out)
    monkeypatch.setattr(timing, "capture", lambda call: call)
    monkeypatch.setattr(timing, "sample", lambda captured: captured() or 12.5)
    return fake


@pytest.fixture
def problem() -> Problem:
    return Problem.of(SPEC, (100,), "cpu")


def test_a_plan_that_is_right_can_be_timed(binding: Binding, problem: Problem) -> None:
    runner = GpuRunner()
    found = [runner.prepare(problem, plan) for plan in PLANS]
    assert all(isinstance(one, Contender) and one.time() == 12.5 for one in found)
    assert all(one.check() == one.checked for one in found)
    texts = [text for text, *_ in binding.kernels]
    assert len(set(texts)) == len(PLANS) > 1
    assert SPEC.text() not in texts  # what the user's calls are served by is left alone
    assert all((low, high) == (1, MAX_ROWS) for *_, low, high in binding.kernels)


def test_a_plan_that_is_wrong_is_a_failure(binding: Binding, problem: Problem) -> None:
    binding.spoil = lambda y: y.add_(1)
    found = GpuRunner().prepare(problem, PLANS[0])
    assert isinstance(found, Failure)
    assert found.wrong
    assert "output y" in found.reason


def test_a_call_that_runs_the_reference_is_not_timed(binding: Binding, problem: Problem, monkeypatch) -> None:
    from comfuse import fallbacks

    binding.spoil = lambda y: fallbacks.record("comfuse::region", "of a test")
    found = GpuRunner().prepare(problem, PLANS[0])
    fallbacks.reset()
    assert isinstance(found, Failure)
    assert not found.wrong
    assert "ran the reference instead" in found.reason


def test_what_does_not_compile_is_a_failure(binding: Binding, problem: Problem) -> None:
    binding.outcome = BuildError("kernel", Path("k.cu"), Path("log"), "ptxas gave up")
    found = GpuRunner().prepare(problem, PLANS[0])
    assert isinstance(found, Failure)
    assert not found.wrong
    assert "ptxas gave up" in found.reason


def test_a_machine_that_cannot_build_ends_it(binding: Binding, problem: Problem) -> None:
    binding.outcome = CacheError("no space left")
    with pytest.raises(CacheError, match="no space left"):
        GpuRunner().prepare(problem, PLANS[0])


def test_a_lost_context_ends_it_and_names_the_plan(binding: Binding, problem: Problem) -> None:
    def trap(y: Tensor) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    binding.spoil = trap
    with pytest.raises(LaunchError, match=rf"\({PLANS[0].label}\) ends .* illegal memory access"):
        GpuRunner().prepare(problem, PLANS[0])


def test_no_memory_is_a_failure_of_one_plan(binding: Binding, problem: Problem) -> None:
    def full(y: Tensor) -> None:
        raise torch.cuda.OutOfMemoryError("tried to allocate")

    binding.spoil = full
    found = GpuRunner().prepare(problem, PLANS[0])
    assert isinstance(found, Failure)
    assert found.reason.startswith("out of memory")


def test_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(resolver, "unsupported_gpu", lambda index: "B200 has compute capability 10.0")
    with pytest.raises(DeviceError, match=r"the current GPU is B200 .* allowed: a Hopper GPU"):
        GpuRunner()
