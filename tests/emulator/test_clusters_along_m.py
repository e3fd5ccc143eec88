"""Clusters of two row blocks, whose CTAs share B, on an emulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfuse.generator.spec import DType, Major, Pair
from tests.emulator.build import spoilt
from tests.emulator.cases import kernel_of, launched
from tests.emulator.test_pairs import ALL_WAYS
from tests.gpu.compare import check, check_exact
from tests.gpu.feedback import BATCH_NORM
from tests.gpu.programs import LAYERNORM, SOFTMAX, gemma_chain
from tests.gpu.reductions import ALL_AXES, GATED_NORM
from tests.gpu.support import Case, make_tensors
from tests.gpu.two_factors import BOTH

#: One row block and three: one of the cluster's is a phantom.  Two, and four of which the last has a row.
MS = (1, 300, 129, 385)

#: With the number of processors.  Rows that wait, of three tiles with a last group of eight columns, of two
#: wgmmas, in four warpgroups, twice; columns that wait; all at once, by the collector; two products.
CLOSE = {
    "rows": (Case(LAYERNORM, 360, schedule="pingpong-128x128-m2"), 6),
    "unaligned": (Case(LAYERNORM, 300, schedule="pingpong-128x128-m2"), 6),
    "wide": (Case(SOFTMAX, 480, schedule="cooperative-128x320-m2"), 4),
    "four warpgroups": (Case(LAYERNORM, 256, DType.FP16, schedule="pingpong2-128x128-m2"), 4),
    "twice": (Case(gemma_chain(200), 200, schedule="cooperative-128x128-m2"), 4),
    "columns": (Case(BATCH_NORM, 200, schedule="cooperative-128x128-m2", m=385), 8),
    "all axes": (Case(ALL_AXES, 200, schedule="pingpong-128x128-m2"), 4),
    "two products": (Case(GATED_NORM, 96, schedule="pingpong-128x64-m2"), 4),
}


@pytest.mark.parametrize("name", CLOSE)
def test_against_float64(name: str, tmp_path: Path, include: Path) -> None:
    """Twice with one workspace, whose words still have the first launch's tags in the second."""
    case, processors = CLOSE[name]
    kernel = kernel_of(case, tmp_path, include, processors)
    for seed, m in enumerate(MS):
        t = make_tensors(case, m, 136, seed=seed, device="cpu")
        check(t, launched(kernel, t, seed=seed, launches=2).tiles, f"M = {m}")


#: Bs that come in other boxes; an A for each product.
EXACT = {
    "n contiguous": Case(ALL_WAYS, 256, schedule="pingpong-128x128-m2", b_major=Major.MN),
    "both contiguous": Case(
        ALL_WAYS, 128, schedule="cooperative-128x128-m2", a_major=Major.MN, b_major=Major.MN
    ),
    "two factors": Case(BOTH, 200, schedule="cooperative-128x128-m2", second=Pair(72)),
    "two factors, n contiguous": Case(
        BOTH, 130, schedule="cooperative-128x128-m2", second=Pair(130, Major.MN, Major.MN)
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_whole_numbers_are_exact(name: str, tmp_path: Path, include: Path) -> None:
    case = EXACT[name]
    kernel = kernel_of(case, tmp_path, include, 4)
    for seed, m in enumerate(MS):
        t = make_tensors(case, m, 72, integers=True, seed=seed, device="cpu")
        check_exact(t, launched(kernel, t, seed=seed, launches=2).tiles, f"M = {m}")


#: Changes to the device's headers, each of which shows in rows that wait.
FAULTS: dict[str, tuple[str, str, str]] = {
    "a stage is free when a CTA's own consumers have left it": (
        "mainloop.hpp",
        "kReleases = Schedule::kTeamSize * kClusterSize;",
        "kReleases = Schedule::kTeamSize;",
    ),
    "both CTAs load the same half": (
        "mainloop.hpp",
        "return kIsShared ? rank * kRows : 0;",
        "return 0;",
    ),
    "an odd row block has no cluster": (
        "scheduler.hpp",
        "return (row_blocks + ClusterM - 1) / ClusterM;",
        "return row_blocks / ClusterM;",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault: str, tmp_path: Path) -> None:
    """As errors or wrong results."""
    case, processors = CLOSE["rows"]
    kernel = kernel_of(case, tmp_path, spoilt(tmp_path, *FAULTS[fault]), processors)
    t = make_tensors(case, 300, 136, device="cpu")

    def launch_often() -> None:
        for seed in range(12):
            check(t, launched(kernel, t, seed=seed, launches=2).tiles)

    with pytest.raises(AssertionError):
        launch_often()
