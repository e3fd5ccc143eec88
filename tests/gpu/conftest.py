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

    Builds at once what all collected tests need: the Cases among their parameters, and what the
    ``specs_ahead`` functions of their modules name.
    """
    from tests.gpu.kernels import Kernels
    from tests.gpu.support import Case

    items = request.session.items
    parameters = [p for i in items if hasattr(i, "callspec") for p in i.callspec.params.values()]
    modules = {i.module.__name__: i.module for i in items if hasattr(i, "module")}
    ahead = [m.specs_ahead() for m in modules.values() if hasattr(m, "specs_ahead")]
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    say = reporter.write_line if reporter is not None else lambda line: print(line, file=sys.stderr)
    cases = [p for p in parameters if isinstance(p, Case)]
    return Kernels(cases, [spec for specs in ahead for spec in specs], say)


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
