"""From a spec to a registered kernel, with the GPU, the compiler and the binding replaced."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from comfuse import fallbacks
from comfuse.errors import (
    ArgumentError,
    BuildError,
    CacheError,
    FallbackError,
    JitDisabledError,
    LaunchError,
    LoadError,
    PlanError,
    ShapeError,
    SpecError,
    ToolchainError,
)
from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType
from comfuse.ops import native, programs, resolver
from comfuse.ops.facts import facts

SPEC = catalog.layernorm(1024, 1024, DType.BF16).text()
ODD = catalog.layernorm(1024, 1023, DType.BF16).text()


class World:
    """What the resolver sees of the machine, and what it did."""

    def __init__(self) -> None:
        self.programs: list[str] = []
        self.built: list[str] = []
        self.kernels: list[tuple[str, int, int]] = []
        self.failure: Exception | None = None

    def build(self, source: SimpleNamespace) -> SimpleNamespace:
        self.built.append(source.name)
        if self.failure is not None:
            raise self.failure
        return source


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(native, "register_program", world.programs.append)
    monkeypatch.setattr(
        native, "register", lambda spec, kernel, low, high: world.kernels.append((spec, low, high))
    )
    monkeypatch.setattr(resolver, "build", world.build)
    monkeypatch.setattr(resolver.library, "load", lambda built: built)
    monkeypatch.setattr(resolver, "unsupported_gpu", lambda device: "too old" if device == 7 else "")
    monkeypatch.setattr(resolver, "planner_gpu", lambda device: "h200")
    monkeypatch.setattr(resolver, "_REFUSED", {})
    return world


def test_a_kernel_for_each_class_of_m(world: World) -> None:
    for m in (1, 128, 129, 5000, 2**31 - 1):
        assert resolver.resolve(SPEC, m, 0) == 0
    assert [rows for _, *rows in world.kernels] == [
        [1, 128],
        [1, 128],
        [129, 512],
        [2049, 2**31 - 1],
        [2049, 2**31 - 1],
    ]
    assert resolver.m_class(2048) == 2048
    assert resolver.m_class(2049) is None


def test_no_kernel_serves_more_rows_than_run_at_once(world: World) -> None:
    """Tiles that read column reductions: classes end where a tile shape would fill the GPU, the last too."""
    b = SpecBuilder(512, 512, DType.BF16)
    x = b.gemm()
    b.output("y", b.op("sub", x, b.op("col_max", x)), DType.BF16)
    spec = b.spec().text()
    for m in (1, 2048, 2049, 4225, 5633, 8448):
        assert resolver.resolve(spec, m, 0) == 0
    rows = [[1, 128], [513, 2048], [2049, 4224], [4225, 5632], [5633, 8448], [5633, 8448]]
    assert [served for _, *served in world.kernels] == rows
    assert resolver.resolve(spec, 8449, 0) == 1
    assert len(world.kernels) == 6
    (refusal,) = {reason for reason, _ in resolver._REFUSED.values()}
    assert "M <= 8448 fits" in refusal


def test_no_rows_need_no_kernel(world: World) -> None:
    assert resolver.resolve(SPEC, 0, 0) == 0
    assert world.programs == [SPEC]
    assert not world.built


def test_what_cannot_be_planned_runs_the_reference(world: World) -> None:
    assert resolver.resolve(ODD, 64, 0) == 1
    assert resolver.resolve(ODD, 64, 0) == 1
    assert not world.built
    (refusal,) = {reason for reason, _ in resolver._REFUSED.values()}
    assert "K = 1023 must be a multiple of 8" in refusal


def test_another_gpu_runs_the_reference(world: World) -> None:
    assert resolver.resolve(SPEC, 64, 7) == 1
    assert resolver.resolve(SPEC, 64, 0) == 0


@pytest.mark.parametrize(
    "failure",
    [ToolchainError("nvcc", (), "install it"), JitDisabledError("cf_kernel"), CacheError("it is damaged")],
    ids=["compiler", "jit", "cache"],
)
def test_nothing_can_be_built(world: World, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    world.failure = failure
    for _ in range(3):
        assert resolver.resolve(SPEC, 64, 0) == 1
    assert len(world.built) == 1  # not tried at every call
    monkeypatch.setenv("CUDA_HOME", "/a/toolkit")
    world.failure = None
    assert resolver.resolve(SPEC, 64, 0) == 0  # but again when the environment has changed
    world.failure = failure
    monkeypatch.setenv("COMFUSE_JIT", "require")
    answer = resolver.resolve(ODD.replace("1023", "1016"), 64, 0)
    assert isinstance(answer, str)
    assert answer.startswith(f"[{type(failure).__name__}] ")


def test_strict_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    answer = resolver.resolve(ODD, 64, 0)
    assert isinstance(answer, str)
    raised = resolver.translate(RuntimeError(f"comfuse: {answer}"), "op")
    assert isinstance(raised, FallbackError)
    assert "multiple of 8" in raised.reason
    assert sum(fallbacks.counts().values()) == 1


def test_a_kernel_that_does_not_compile_is_an_error(world: World) -> None:
    world.failure = BuildError("cf_kernel", Path("/k.cu"), Path("/k.log"), "line 1: error")
    answer = resolver.resolve(SPEC, 64, 0)
    assert isinstance(answer, str)
    assert answer.startswith("[BuildError] cf_kernel does not compile")
    raised = resolver.translate(RuntimeError(f"comfuse: {answer}"), "op")
    assert isinstance(raised, BuildError)
    assert str(raised) == str(world.failure)


def test_a_kernel_that_does_not_compile_is_compiled_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.failure = BuildError("cf_kernel", Path("/k.cu"), Path("/k.log"), "line 1: error")
    answers = [resolver.resolve(SPEC, 64, 0) for _ in range(3)]
    assert len(set(answers)) == 1
    assert len(world.built) == 1
    assert resolver.refusal(SPEC, 128, 0) == str(world.failure)
    world.failure = None
    assert resolver.resolve(SPEC, 200, 0) == 0  # another class of rows, another kernel
    monkeypatch.setenv("COMFUSE_NVCC_FLAGS", "-lineinfo")  # another compile
    assert resolver.resolve(SPEC, 64, 0) == 0


def test_errors_of_the_binding() -> None:
    error = resolver.translate(
        RuntimeError("comfuse: [ShapeError] bias is of shape (7); allowed: (N,) with M = 3, N = 8"), "region"
    )
    assert isinstance(error, ShapeError)
    assert (error.op, error.argument, error.got) == ("region", "bias", "of shape (7)")
    error = resolver.translate(
        RuntimeError("comfuse: [ArgumentError] operands is a list of 1; allowed: 2"), "region"
    )
    assert isinstance(error, ArgumentError)
    error = resolver.translate(RuntimeError("comfuse: [LaunchError] cf_kernel: out of memory"), "region")
    assert isinstance(error, LaunchError)
    assert isinstance(resolver.translate(RuntimeError("comfuse: [Unheard] of"), "region"), LoadError)
    other = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert resolver.translate(other, "region") is other


def test_malformed_specs(world: World) -> None:
    text = SPEC.replace("gemm", "nonsense")

    def register(spec: str) -> None:
        facts(programs.parse(spec))

    native.register_program = register  # type: ignore[assignment]  # undone by the fixture's monkeypatch
    answer = resolver.resolve(text, 64, 0)
    assert isinstance(answer, str)
    assert isinstance(resolver.translate(RuntimeError(f"comfuse: {answer}"), "op"), SpecError)


def test_a_planner_s_refusal_is_a_sentence() -> None:
    from comfuse.generator.plan import plan
    from comfuse.generator.spec import FusedSpec

    with pytest.raises(PlanError, match="multiple of 8"):
        plan(FusedSpec.parse(ODD))


class TestBinding:
    """The library itself, which loads without a GPU."""

    def test_loads_and_takes_over_cuda(self) -> None:
        import torch

        native.load()
        assert native.is_loaded()
        for name in ("region", "region_1.t0", "region_1.t6"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"comfuse::{name}", "CUDA")
        assert native.copies() == {}

    def test_needs_a_registered_program(self) -> None:
        kernel = SimpleNamespace(name="cf_kernel", launch=1, workspace=1)
        with pytest.raises(LoadError, match="cf_kernel: its spec is not registered"):
            native.register("never seen", kernel, 1, 2)  # type: ignore[arg-type]

    def test_is_found_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from comfuse.build import binding

        native.load()
        monkeypatch.setenv("COMFUSE_JIT", "off")
        assert binding.build_binding().is_file()

    @pytest.mark.parametrize("jit", ["auto", "require"])
    def test_a_cache_that_cannot_be_used(self, jit: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def load() -> None:
            raise CacheError("it is damaged")

        monkeypatch.setattr(native, "load", load)
        monkeypatch.setenv("COMFUSE_JIT", jit)
        tensor: Any = SimpleNamespace(is_cuda=True)
        if jit == "auto":
            assert native.reason_against(tensor) == "it is damaged"
        else:
            with pytest.raises(CacheError):
                native.reason_against(tensor)

    def test_not_there_and_not_allowed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from comfuse.build import binding

        monkeypatch.setenv("COMFUSE_JIT", "off")
        monkeypatch.setenv("COMFUSE_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(binding, "PREBUILT_DIR", tmp_path)
        with pytest.raises(JitDisabledError, match="binding"):
            binding.build_binding()

    def test_an_error_shows_the_compiler_s_words(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from comfuse.build import binding

        broken = tmp_path / "broken.cpp"
        broken.write_text("int f() { return missing_thing; }\n")
        monkeypatch.setenv("COMFUSE_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr(binding, "PREBUILT_DIR", tmp_path)
        monkeypatch.setattr(binding, "sources", lambda: [broken])
        with pytest.raises(BuildError, match="missing_thing") as caught:
            binding.build_binding()
        assert caught.value.log.is_file()


def test_other_devices_are_counted() -> None:
    """The entry that runs where neither CPU nor C++ has a kernel."""
    import torch

    reason = native.reason_against(torch.empty(1, device="meta"))
    assert reason is not None
    assert "no kernels for meta devices" in reason
    assert "comfuse.ops.resolver" in sys.modules


@pytest.mark.parametrize(
    ("name", "processors", "planned_as"),
    [
        ("NVIDIA H200", 132, "h200"),
        ("NVIDIA H100 80GB HBM3", 132, "h100"),
        ("NVIDIA H100 PCIe", 114, "h100:114"),
        ("NVIDIA H200 MIG 3g.71gb", 60, "h200:60"),
    ],
)
def test_a_gpu_is_planned_for_with_its_own_processors(monkeypatch, name, processors, planned_as) -> None:
    properties = SimpleNamespace(name=name, multi_processor_count=processors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    resolver.planner_gpu.cache_clear()
    assert resolver.planner_gpu(0) == planned_as
    resolver.planner_gpu.cache_clear()
