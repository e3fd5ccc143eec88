"""Many kernels a translation unit: compiled together, found one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from comfuse import library
from comfuse.build import build, cache, find_built, packs
from comfuse.errors import BuildError, CacheError
from comfuse.generator import catalog
from comfuse.generator.emit import KernelSource, emit
from comfuse.generator.plan import plan
from comfuse.generator.spec import DType
from tests.build.conftest import Source, trivial
from tests.build.test_robust import MODULE, TOOLS

_HEADER = "#include <comfuse/sm90/fused_gemm.hpp>\n\nnamespace cf = comfuse;\n"


def emitted(count: int) -> list[KernelSource]:
    activations = (None, "relu", "sigmoid", "tanh")
    return [emit(plan(catalog.linear(128, 64, DType.BF16, activation=a))) for a in activations[:count]]


def stub(name: str) -> Source:
    """A kernel that compiles fast and begins as emitted ones do."""
    return Source(name, _HEADER + trivial(name).text.replace("__global__", "\n__global__"))


class Compiler:
    """Writes the names of the kernels in a text, instead of compiling it; refuses some."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.refused: set[str] = set()
        self.full = False

    def compile_cuda(
        self, name: str, text: Path, folder: Path, toolkit: object, cutlass: object, tick: Callable[[], None]
    ) -> Path:
        content = text.read_text()
        self.texts[name] = content
        log = folder / "build.log"
        log.write_text("")
        if self.full:
            raise OSError("No space left on device")
        if any(f"COMFUSE_EXPORT({word}," in content for word in self.refused):
            raise BuildError(name, text, log, "error: refused")
        (folder / f"{name}.so").write_text(name)
        return folder / f"{name}.so"


@pytest.fixture
def compiler(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(MODULE, "toolchain", lambda: TOOLS)
    monkeypatch.setattr(MODULE, "compile_cuda", made.compile_cuda)
    return made


def test_kernels_are_built_together_and_found_alone(compiler: Compiler) -> None:
    sources = emitted(4)
    said: list[str] = []
    built = packs.build_all([*sources, sources[0]], jobs=2, say=said.append)
    assert list(built) == [source.name for source in sources]
    assert [len(text.split("COMFUSE_EXPORT(")) - 1 for text in compiler.texts.values()] == [2, 2]
    assert said[0].startswith("comfuse: building 2 packs, 2 at a time: 0 done, about ")
    assert said[-1].startswith("2 built, after ")
    for source in sources:
        kernel = built[source.name]
        assert isinstance(kernel, cache.BuiltKernel)
        found = find_built(source)
        assert found is not None
        assert (found.name, found.path, found.digest) == (kernel.name, kernel.path, kernel.digest)
        assert build(source) == found
        assert kernel.name == source.name
        assert kernel.path.read_text().startswith("cf_pack_")
        assert kernel.info["spec"] == source.plan.spec.text()
        assert kernel.info["plan"]["tile_m"] == source.plan.tile_m
    assert len(compiler.texts) == 2


def test_what_is_built_already_is_left_out(compiler: Compiler) -> None:
    """So a build that was cut off goes on where it stopped, however it is divided."""
    sources = emitted(4)
    build(sources[0])
    packs.build_all(sources[1:3], jobs=1)
    before = dict(compiler.texts)
    packs.build_all(sources, jobs=2)
    (name,) = set(compiler.texts) - set(before)
    assert name == sources[3].name  # alone: no pack
    packs.build_all(sources)
    assert len(compiler.texts) == len(before) + 1


def test_a_kernel_that_does_not_compile_does_not_take_others_with_it(compiler: Compiler) -> None:
    sources = emitted(4)
    compiler.refused = {sources[1].name}
    built = packs.build_all(sources, jobs=1)
    assert isinstance(built[sources[1].name], BuildError)
    others = [built[source.name] for source in sources if source is not sources[1]]
    assert all(isinstance(kernel, cache.BuiltKernel) for kernel in others)


def test_a_disk_that_is_full_is_not_the_kernels_fault(compiler: Compiler) -> None:
    compiler.full = True
    built = packs.build_all(emitted(2), jobs=1)
    assert all(isinstance(error, CacheError) for error in built.values())


def test_a_pack_that_is_damaged_is_built_again(compiler: Compiler) -> None:
    sources = emitted(2)
    first = packs.build_all(sources, jobs=1)[sources[0].name]
    assert isinstance(first, cache.BuiltKernel)
    first.path.write_text("damaged")
    assert find_built(sources[0]) is None
    again = build(sources[0])
    assert again.path.read_text() == sources[0].name
    found = find_built(sources[0])
    assert found is not None
    assert found.path == again.path


def test_only_emitted_texts_can_be_packed() -> None:
    with pytest.raises(ValueError, match="cf_other does not begin as kernels do"):
        packs.combined([Source("cf_other", "int x;\n")])


def test_packs_take_more_memory_than_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMFUSE_MAX_JOBS", raising=False)
    monkeypatch.setattr(MODULE, "_available_memory", lambda: 6.5e9)
    monkeypatch.setattr(MODULE.os, "sched_getaffinity", lambda _: range(64))
    assert MODULE.jobs_that_fit() == 4
    assert MODULE.jobs_that_fit(packs._BYTES_A_PACK) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("compilers")
def test_a_compiled_pack(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a launcher, which sees the call of nvcc."""
    launcher, calls = tmp_path / "launcher", tmp_path / "calls"
    launcher.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("COMFUSE_COMPILER_LAUNCHER", str(launcher))
    sources = [stub("cf_one"), stub("cf_two")]
    built = packs.build_all(sources, jobs=1)
    kernels = [library.load(built[source.name]) for source in sources]  # type: ignore[arg-type]
    assert [kernel.workspace_bytes(2) for kernel in kernels] == [16, 16]
    assert kernels[0].path == kernels[1].path
    (call,) = calls.read_text().splitlines()
    assert "/nvcc " in call
    assert "-MD" not in call.split()


def test_a_launcher_that_is_not_there(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comfuse.build import compile as compiling
    from comfuse.errors import ToolchainError

    monkeypatch.setenv("COMFUSE_COMPILER_LAUNCHER", "no-such-launcher --fast")
    with pytest.raises(ToolchainError, match=r"no-such-launcher not found .*COMFUSE_COMPILER_LAUNCHER"):
        compiling._launched(SimpleNamespace(nvcc="nvcc"), tmp_path)  # type: ignore[arg-type]
