from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from comfuse import fallbacks
from tests.ops.host_binding import Host, compile_host


@pytest.fixture(autouse=True)
def clean_counts() -> Iterator[None]:
    fallbacks.reset()
    yield
    fallbacks.reset()


@pytest.fixture
def nothing_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "1")


@pytest.fixture(scope="session")
def loaded_host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent  # what all workers share
    with FileLock(folder / "host_binding.lock"):
        build: Path = folder / "host_binding"
        library = build / "comfuse_host.so"
        if not library.is_file():
            build.mkdir()
            compile_host(build)
    return Host.load(library)


@pytest.fixture
def host(loaded_host: Host) -> Iterator[Host]:
    loaded_host.launched.clear()
    loaded_host.library.comfuse_reset_copies()
    yield loaded_host
    loaded_host.library.fake_set_capturing(0)
    loaded_host.library.fake_set_supported(1)
    loaded_host.library.fake_set_stream(0x10)
    loaded_host.library.fake_destroy_graphs()
    loaded_host.resolve = lambda spec, rows: 1
