"""The resolver and kernel libraries: these are asked before anything is built, and the binding launches what
they have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from comfuse import fallbacks
from comfuse.errors import FallbackError, JitDisabledError
from comfuse.generator import catalog
from comfuse.generator.spec import DType
from comfuse.library import LoadedKernel, builder, catalogue, lookup, manifest
from comfuse.ops import native, resolver
from tests.library.stubs import Compilers, compilers, folder
from tests.ops.host_binding import Host

__all__ = ["compilers", "folder"]

LINEAR = catalog.linear(128, 64, DType.BF16, bias=DType.BF16)
OTHER = catalog.linear(128, 72, DType.BF16)


class Registered:
    """What reached the binding, and what was to be built instead."""

    def __init__(self) -> None:
        self.kernels: list[tuple[LoadedKernel, int, int]] = []
        self.built: list[str] = []

    def register(self, spec: str, kernel: LoadedKernel, low: int, high: int) -> None:
        self.kernels.append((kernel, low, high))

    def build(self, source: object) -> None:
        self.built.append(source.name)  # type: ignore[attr-defined]
        raise JitDisabledError("cf_kernel")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registered]:
    made = Registered()
    monkeypatch.setattr(native, "register_program", lambda spec: None)
    monkeypatch.setattr(native, "register", made.register)
    monkeypatch.setattr(resolver, "build", made.build)
    monkeypatch.setattr(resolver, "unsupported_gpu", lambda device: "")
    monkeypatch.setattr(resolver, "planner_gpu", lambda device: "h200")
    monkeypatch.setattr(resolver, "_REFUSED", {})
    monkeypatch.setattr(lookup, "_SHELVES", {})
    lookup._REFUSALS.clear()
    yield made
    lookup._REFUSALS.clear()


def test_a_library_is_asked_before_the_compiler(world: Registered, folder: Path) -> None:
    assert resolver.resolve(LINEAR.text(), 300, 0) == 0
    ((kernel, *rows),) = world.kernels
    assert kernel.path.parent == folder
    assert rows == [129, 512]
    assert not world.built
    assert resolver.shelved(LINEAR.text(), 300, 0) == kernel
    assert resolver.shelved(OTHER.text(), 300, 0) is None


def test_what_is_in_no_library_is_built(world: Registered, folder: Path) -> None:
    assert resolver.resolve(OTHER.text(), 300, 0) == 1
    assert len(world.built) == 1
    reason = resolver.refusal(OTHER.text(), 512, 0)
    assert "COMFUSE_JIT=off" in reason
    assert f"kernel library {folder}: it has not this program" in reason


def test_why_a_library_was_of_no_use_is_part_of_the_reason(
    world: Registered, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / manifest.NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"abi_version": 1}))
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    answer = resolver.resolve(LINEAR.text(), 300, 0)
    assert isinstance(answer, str)
    raised = resolver.translate(RuntimeError(f"comfuse: {answer}"), "op")
    assert isinstance(raised, FallbackError)
    assert f"kernel library {folder}: it was built for ABI version 1" in raised.reason
    assert sum(fallbacks.counts().values()) == 1
    assert list(lookup.refusals().values()) == [1]


def test_another_library_is_asked_at_once(
    world: Registered, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was refused is asked for again when COMFUSE_LIBRARY has changed."""
    monkeypatch.setenv("COMFUSE_LIBRARY", str(tmp_path / "none"))
    for _ in range(2):
        assert resolver.resolve(LINEAR.text(), 300, 0) == 1
    assert len(world.built) == 1
    monkeypatch.setenv("COMFUSE_LIBRARY", str(folder))
    assert resolver.resolve(LINEAR.text(), 300, 0) == 0
    assert len(world.kernels) == 1


def test_a_library_that_was_built_meanwhile_is_asked(world: Registered, folder: Path, tmp_path: Path) -> None:
    away = folder.rename(tmp_path / "away")
    assert resolver.resolve(LINEAR.text(), 300, 0) == 1
    away.rename(folder)
    assert resolver.resolve(LINEAR.text(), 300, 0) == 0


def test_a_chain_comes_from_a_library(
    world: Registered, compilers: Compilers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = catalog.mlp(64, 128, 256, DType.BF16, norm="rmsnorm")
    table = {"program": "mlp", "shapes": [[64, 128, 256]], "norm": "rmsnorm", "rows": ["many"]}
    builder.build_library([catalogue.parse("chains", {"kernel": [table]})], tmp_path / "library")
    assert resolver.resolve(chain.text(), 5000, 0) == 0
    ((kernel, *rows),) = world.kernels
    assert kernel.path.parent == tmp_path / "library"
    assert rows == [2049, 2**31 - 1]
    assert resolver.resolve(chain.text(), 100, 0) == 1
    assert "its kernels serve 2049 to 2147483647 rows" in resolver.refusal(chain.text(), 128, 0)
    monkeypatch.setenv("COMFUSE_CHAINS", "0")  # nor then
    assert resolver.resolve(chain.text(), 5000, 0) == 1


@pytest.mark.slow
def test_the_binding_launches_a_library_s_kernel(host: Host, compilers: Compilers, folder: Path) -> None:
    kernel = lookup.kernel(LINEAR, (1, 128), "h200")
    assert kernel is not None
    host.register_program(LINEAR)
    text = LINEAR.text().encode()
    assert not host.library.comfuse_register_kernel(
        text, len(text), 1, 128, kernel.name.encode(), kernel.launch, kernel.workspace
    )
    a, b, bias = (torch.zeros(s, dtype=torch.bfloat16) for s in [(5, 64), (128, 64), (128,)])
    y = host.call(LINEAR, a, b, [bias])
    assert y.shape == (5, 128)
    assert y[:, 0].tolist() == [1.0] * 5
