"""Builds kernels up front; ends a process whose CUDA context is lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.gpu.kernels import Kernels


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """A function from a Case to its loaded kernel.

    Builds at once what all collected tests need: the cases among their parameters, and what the
    ``specs_ahead`` functions of their modules name.  Not in the processes of pytest-xdist, which would each
    plan all of them: there `python -m tests.gpu.build` comes first, and what it left out is built when asked.
    """
    from comfuse.build import packs
    from tests.gpu.kernels import Kernels, needed_by, sources_of

    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    say = reporter.write_line if reporter is not None else lambda line: print(line, file=sys.stderr)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        packs.build_all(sources_of(*needed_by(request.session.items)), say=say)
    return Kernels()


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
