"""The device headers, rewritten once for all kernels of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.build import headers


@pytest.fixture(scope="session")
def include(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return headers(tmp_path_factory.mktemp("headers"))
