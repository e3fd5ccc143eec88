"""Training under DDP and FSDP2 in two processes on a CPU: the losses of the unfused model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the dev extra")

from tests.inductor.distributed import STEPS, Run, curves, deviation, reference

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")


@pytest.mark.slow
def test_losses_follow_those_of_the_unfused_model(tmp_path: Path) -> None:
    """No further from float32 than twice the unfused model, or than bf16 rounds."""
    wrappers = ("ddp", "fsdp2")
    # The unfused ones first: what is enabled for the fused ones stays on.
    runs = [Run(w, fused) for fused in (False, True) for w in wrappers]
    found = dict(zip(runs, curves(runs, tmp_path), strict=True))
    exact = reference(Run(None, False))
    assert exact[-1] < 0.95 * exact[0]
    for wrapper in wrappers:
        fused, unfused = found[Run(wrapper, True)], found[Run(wrapper, False)]
        assert len(fused) == STEPS
        assert fused != unfused, "nothing was fused"
        assert deviation(fused, exact) <= max(2 * deviation(unfused, exact), 2.0**-8), wrapper
