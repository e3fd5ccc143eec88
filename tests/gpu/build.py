"""`python -m tests.gpu.build [pytest arguments]`: build these tests' kernels in parallel, without a GPU."""

from __future__ import annotations

import sys

import pytest

from tests.gpu.kernels import Kernels, needed_by


class _Builder:
    """A pytest plugin that builds once the tests are collected."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        Kernels(*needed_by(session.items), lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(pytest.main(["--collect-only", "-qq", *(sys.argv[1:] or ["tests/gpu"])], plugins=[_Builder()]))
