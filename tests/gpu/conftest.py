"""Skips without a Hopper GPU, builds kernels up front, ends a process whose CUDA context is lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import torch


def _no_gpu() -> str | None:
    """Why these tests cannot run here, None if they can."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        return f"{torch.cuda.get_device_name()} has compute capability {capability}, Hopper's is (9, 0)"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := _no_gpu()):
        pytest.skip(f"needs a Hopper GPU: {reason}")


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest):
    """A function from a Case to its loaded kernel; builds those of all collected tests at once."""
    from tests.gpu.kernels import Kernels
    from tests.gpu.support import Case

    cases = {
        str(value): value
        for item in request.session.items
        for value in getattr(getattr(item, "callspec", None), "params", {}).values()
        if isinstance(value, Case)
    }
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    say = reporter.write_line if reporter is not None else lambda line: print(line, file=sys.stderr)
    return Kernels(cases.values(), say)


@pytest.fixture(autouse=True)
def _context_survives(request: pytest.FixtureRequest) -> Iterator[None]:
    """A trapped kernel loses the CUDA context: no later test of this process can pass, so it ends here.

    A worker of pytest-xdist is replaced, and the tests after this one run in its successor.
    """
    yield
    if not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as e:
        message = f"CUDA context lost in {request.node.nodeid}: {str(e).splitlines()[0]}"
        if "PYTEST_XDIST_WORKER" in os.environ:
            print(message, file=sys.stderr, flush=True)
            os._exit(70)
        pytest.exit(message, returncode=70)
