"""What is said where no shape can run a program: every constraint once, of the shape that is nearest."""

from __future__ import annotations

import pytest

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import PlanError
from comfuse.generator.plan import plan
from comfuse.generator.spec import DType


def softmax(n: int) -> str:
    b = SpecBuilder(n, 64, DType.BF16)
    x = b.gemm()
    b.output("y", b.op("exp", b.op("sub", x, b.op("row_max", x))), DType.BF16)
    with pytest.raises(PlanError) as caught:
        plan(b.spec())
    return caught.value.reason


def test_the_widest_row_that_fits_and_its_tile() -> None:
    assert softmax(64000) == (
        "no tile shape fits: a row reduction over N = 64000 that the row's own elements read spans more tiles"
        " than can run at once; N <= 42240 fits (cooperative 128x320x64, cluster 1x1)"
    )


def test_what_keeps_the_widest_tiles_out_comes_behind() -> None:
    first, bound, tiles = softmax(50000).split("; ")
    assert first.startswith("no tile shape fits: a row reduction over N = 50000")
    assert bound == "N <= 33792 fits (cooperative 128x256x64, cluster 1x1)"
    assert tiles.startswith("tiles of 288 columns need one batch")
