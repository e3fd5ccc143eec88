"""CTAs that wait for each other, on an emulated GPU: clusters, and words exchanged through global memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.build import spoilt
from tests.emulator.cases import kernel_of, launched
from tests.gpu.compare import check
from tests.gpu.feedback import BATCH_NORM
from tests.gpu.programs import LAYERNORM, SOFTMAX, gemma_chain
from tests.gpu.support import Case, make_tensors

#: With the number of processors.  Three tiles a row in clusters of two: one is a phantom.  Tiles of a column.
#: Tiles of two wgmmas.
CASES = (
    (Case(LAYERNORM, 300, schedule="pingpong-128x128", cluster_n=2), 6),
    (Case(BATCH_NORM, 200, schedule="cooperative-128x128", cluster_n=2, m=1), 6),
    (Case(LAYERNORM, 480, schedule="cooperative-128x288", cluster_n=2), 4),
    (Case(gemma_chain(200), 200, schedule="pingpong-128x128", cluster_n=2), 4),
    (Case(LAYERNORM, 256, schedule="pingpong2-128x128", cluster_n=2), 2),
    (Case(SOFTMAX, 384, schedule="cooperative-128x192", cluster_n=2), 4),
)


@pytest.mark.parametrize(
    "case, processors",
    CASES,
    ids=["rows", "columns", "wide", "in-cluster", "four warpgroups", "softmax"],
)
def test_exchanges_against_float64(case: Case, processors: int, tmp_path: Path, include: Path) -> None:
    """Twice with one workspace, whose words still have the first launch's tags in the second."""
    kernel = kernel_of(case, tmp_path, include, processors)
    for seed, m in enumerate((1, 200, 300)):
        t = make_tensors(case, m, 136, seed=seed, device="cpu")
        check(t, launched(kernel, t, seed=seed, launches=2).tiles, f"M = {m}")


#: Changes to the device's headers, and the case that shows them.
FAULTS: dict[str, tuple[str, str, str]] = {
    "a warp does not await its peers' words": (
        "cluster_group.hpp",
        "wait(*b, position.exchange >> 1 & 1);",
        ";",
    ),
    "a CTA loads before its peer's barriers are there": (
        "kernel.hpp",
        "fence_barrier_init();\n    }\n    synchronize();",
        "fence_barrier_init();\n    }\n    __syncthreads();",
    ),
    "a CTA does not await the launch's words": (
        "exchange.hpp",
        "all = all && (uint32_t(words[t] >> 32) & 1u) == tag;",
        ";",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault: str, tmp_path: Path) -> None:
    """As errors or wrong results."""
    case, processors = CASES[3 if FAULTS[fault][0] == "cluster_group.hpp" else 0]
    kernel = kernel_of(case, tmp_path, spoilt(tmp_path, *FAULTS[fault]), processors)
    t = make_tensors(case, 200, 136, device="cpu")

    def launch_often() -> None:
        for seed in range(12):
            check(t, launched(kernel, t, seed=seed, launches=2).tiles)

    with pytest.raises(AssertionError):
        launch_often()
