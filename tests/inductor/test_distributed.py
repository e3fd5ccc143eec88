"""Training under DDP and FSDP2 in two processes on a CPU: the losses of the unfused model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the dev extra")

from tests.inductor.distributed import Run, check, curves, reference

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")


def test_losses_follow_those_of_the_unfused_model(tmp_path: Path) -> None:
    """The bound is tight enough to tell a learning rate that is 2 % off."""
    exact = reference(Run(None))
    wrappers = ("ddp", "fsdp2")
    runs = [Run(wrapper, fused) for wrapper in wrappers for fused in (False, True)]
    found = dict(zip(runs, curves(runs, tmp_path), strict=True))
    other = reference(Run(None, rate=1.02))
    for wrapper in wrappers:
        eager = found[Run(wrapper)]
        check(found[Run(wrapper, True)], eager, exact)
        assert other.distance(exact) > 2 * eager.distance(exact), wrapper
