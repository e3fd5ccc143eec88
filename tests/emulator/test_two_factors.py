"""Two GEMMs side by side with an A, a B and a K each, on an emulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfuse.generator.spec import Major, Pair
from tests.emulator.build import spoilt
from tests.emulator.cases import kernel_of, launched
from tests.gpu.compare import check, check_exact
from tests.gpu.support import Case, make_tensors
from tests.gpu.two_factors import BOTH, MIDDLE, TILES

K, MN = Major.K, Major.MN
#: Both teams and one; all Bs permuted, pairs of columns, accumulators traded; a cluster; batches.
CASES = (
    (Case(BOTH, 72, schedule="pingpong-128x64", cluster_n=1, second=Pair(200)), ((1,), (300,))),
    (Case(BOTH, 128, schedule="pingpong-128x64", cluster_n=2, second=Pair(24, K, MN)), ((321,),)),
    (Case(BOTH, 256, schedule="cooperative-128x128", cluster_n=2, second=Pair(130, MN, MN)), ((200,),)),
    (Case(BOTH, 40, schedule="cooperative-128x128", cluster_n=1, second=Pair(64, MN, K)), ((130,),)),
    (
        Case(
            TILES,
            64,
            schedule="cooperative-128x128",
            cluster_n=1,
            batched=True,
            second=Pair(72, K, MN),
        ),
        ((2, 140),),
    ),
)


@pytest.mark.parametrize("case, leads", CASES, ids=lambda x: str(x) if isinstance(x, Case) else "")
def test_whole_numbers_are_exact(
    case: Case, leads: tuple[tuple[int, ...], ...], tmp_path: Path, include: Path
) -> None:
    kernel = kernel_of(case, tmp_path, include)
    for seed, lead in enumerate(leads):
        for k in (8, 136):
            t = make_tensors(case, lead, k, integers=True, seed=seed, device="cpu")
            check_exact(t, launched(kernel, t, seed=seed, launches=2).tiles, f"{lead}, K = {k}")


def test_the_middle_of_an_mlp_and_its_gradient(tmp_path: Path, include: Path) -> None:
    case = Case(MIDDLE, 128, schedule="cooperative-128x128", cluster_n=1, second=Pair(96, K, MN))
    t = make_tensors(case, 200, 72, device="cpu")
    check(t, launched(kernel_of(case, tmp_path, include), t, seed=3).tiles)


#: Changes to the loop over the second product's K blocks.
FAULTS = {
    "its first block does not free the last of the pass before": ("Pass > 0 || k > 0", "k > 0"),
    "it adds to what the accumulators held": ("k > 0 || step > 0);", "true);"),
    "it accumulates over the first product": ("kFirst = Pass * kColumnsOfPass / 2;", "kFirst = 0;"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault: str, tmp_path: Path) -> None:
    """As errors or wrong results."""
    case = CASES[3][0]
    kernel = kernel_of(case, tmp_path, spoilt(tmp_path, "mainloop.hpp", *FAULTS[fault]))
    t = make_tensors(case, 1000, 136, integers=True, device="cpu")
    with pytest.raises(AssertionError):
        check_exact(t, launched(kernel, t, seed=1).tiles)
