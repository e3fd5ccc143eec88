"""Rows that the two CTAs of a cluster hold, and exchange through each other's shared memory."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.compare import check
from tests.gpu.programs import LAYERNORM, SOFTMAX, gemma_chain
from tests.gpu.reductions import ALL_AXES, GATED_NORM, SCHEDULES_OF_TWO
from tests.gpu.support import Case, make_tensors, run_kernel

pytestmark = pytest.mark.gpu

TEAMS = ("pingpong-128x128", "pingpong2-128x128", "cooperative-128x128")
SIZES = ((1, 72), (127, 8), (1000, 1024), (16344, 72), (40000, 72))  # the last: several rows of tiles a CTA

CASES = (
    *(Case(p, 256, schedule=s, cluster_n=2) for p in (LAYERNORM, SOFTMAX, gemma_chain(256)) for s in TEAMS),
    *(Case(LAYERNORM, n, schedule=f"cooperative-128x{n // 2}", cluster_n=2) for n in (384, 512, 640)),
    Case(gemma_chain(384), 384, schedule="cooperative-128x192", cluster_n=2),
    Case(SOFTMAX, 500, schedule="cooperative-128x256", cluster_n=2),
    Case(LAYERNORM, 130, schedule="pingpong-128x128", cluster_n=2),  # two columns in the second tile
    Case(LAYERNORM, 200, schedule="pingpong2-128x128", cluster_n=2, batched=True),
    # Beside reductions that nobody waits for, and of two products.
    Case(ALL_AXES, 256, schedule="cooperative-128x128", cluster_n=2),
    *(Case(GATED_NORM, 128, schedule=s, cluster_n=2) for s in SCHEDULES_OF_TWO[:2]),
    Case(GATED_NORM, 256, schedule=SCHEDULES_OF_TWO[2], cluster_n=2),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in SIZES:
        t = make_tensors(case, (3, m // 3 + 1) if case.batched else m, k)
        check(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_rows_with_nan_and_infinity(case: Case, kernels) -> None:
    """They reach their own row, whole, and no other."""
    t = make_tensors(case, 1000, 72)
    t.a[5, 3], t.a[130, 0] = float("nan"), float("inf")
    (output,) = run_kernel(kernels, t)
    wrong = ~torch.isfinite(output.float()).all(dim=-1)
    assert wrong.nonzero().flatten().tolist() == [5, 130]
    assert torch.isnan(output[5]).all()
