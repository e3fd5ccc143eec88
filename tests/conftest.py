"""Shared by all tests: what needs a GPU is skipped without one, and says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Plans are those of the planner's own constants, whatever was measured on this machine.
os.environ["COMFUSE_CALIBRATION"] = os.devnull


def missing_gpu() -> str | None:
    """Why tests marked gpu cannot run here, None if they can."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        return f"{torch.cuda.get_device_name()} has compute capability {capability}, Hopper's is (9, 0)"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := missing_gpu()):
        pytest.skip(f"needs a Hopper GPU: {reason}")


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kernel cache for this test alone."""
    path = tmp_path / "cache"
    monkeypatch.setenv("COMFUSE_CACHE_DIR", str(path))
    return path
