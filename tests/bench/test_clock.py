"""The clock of the SMs: what two readings of their counters say."""

from __future__ import annotations

import pytest
import torch

from bench import clock
from comfuse.build import build
from tests.build.conftest import missing_toolchain


def test_the_median_of_the_sms_that_were_read_twice() -> None:
    before = torch.tensor([[1000, 5000], [10, 20], [0, 0], [7, 7]])
    behind = torch.tensor([[2500, 6000], [1410, 1020], [100, 100], [0, 0]])
    assert clock.between(before, behind) == pytest.approx(1400.0)  # of 1500 and 1400: the lower middle
    assert clock.between(before, torch.zeros_like(before)) is None


@pytest.mark.skipif(bool(missing_toolchain()), reason="needs a toolchain")
def test_the_kernel_compiles() -> None:
    assert build(clock.source()).info["ptxas"]["spill_bytes"] == 0


@pytest.mark.gpu
def test_a_busy_gpu_has_a_clock() -> None:
    sm = clock.SmClock()
    for _ in range(3):
        with sm.watch("spin"):
            torch.cuda._sleep(1_000_000)
    mhz = sm.mhz("spin")
    assert mhz is not None
    assert 300.0 < mhz < 2200.0
    assert sm.mhz("nothing") is None
