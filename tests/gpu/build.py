"""`python -m tests.gpu.build [pytest arguments]`: build these tests' kernels in parallel, without a GPU."""

from __future__ import annotations

import sys

import pytest

from bench import ahead
from comfuse.build import packs
from tests.gpu.kernels import built_by_passes, needed_by, sources_of


class _Builder:
    """A pytest plugin that builds once the tests are collected."""

    failed = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        sources = sources_of(*needed_by(session.items))
        results = list(packs.build_all(sources, say=_say).values())
        results += ahead.build_all(built_by_passes(session.items), _say).values()
        self.failed = sum(isinstance(r, Exception) for r in results)
        _say(f"{len(results) - self.failed} kernels, {self.failed} failed")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    builder = _Builder()
    code = pytest.main(["--collect-only", "-qq", *(sys.argv[1:] or ["tests/gpu"])], plugins=[builder])
    sys.exit(code or bool(builder.failed))
