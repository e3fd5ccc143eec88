"""Reductions of rows wider than the tiles that can run at once: outputs only, so no tile waits."""

from __future__ import annotations

import pytest

from tests.gpu.compare import check
from tests.gpu.reductions import CROSS_ENTROPY
from tests.gpu.support import Case, make_tensors, run_kernel

pytestmark = pytest.mark.gpu

CASES = (
    *(Case(CROSS_ENTROPY, 32000, schedule=s) for s in ("pingpong-128x128", "cooperative-128x256")),
    Case(CROSS_ENTROPY, 50257),  # GPT-2's vocabulary: unaligned too
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (1000, 136)):
        t = make_tensors(case, m, k)
        check(t, run_kernel(kernels, t), f"M = {m}, K = {k}")
