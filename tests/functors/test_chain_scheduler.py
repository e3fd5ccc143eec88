"""The tiles of a chain's kernel (comfuse/sm90/chain_scheduler.hpp), compiled for the host."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np

from tests.functors.host import compile_for_host

STUBS = Path(__file__).parent / "stubs"


def test_each_tile_once_and_beside_its_weights(tmp_path: Path) -> None:
    host = compile_for_host(tmp_path, (STUBS / "scheduler.cpp").read_text(), STUBS)
    for warpgroups, ctas, batches, blocks in itertools.product(
        (2, 3), (1, 2, 3, 7, 132), (1, 2, 5, 192), (1, 2, 3, 4, 8, 128)
    ):
        for kind in ("batched", "one") if batches == 1 else ("batched",):
            computed = np.zeros(batches * blocks, np.int32)
            walk = getattr(host, f"{kind}_{warpgroups}")
            assert walk(ctas, batches, blocks, ctypes.c_void_p(computed.ctypes.data)) == 0
            assert (computed == 1).all()
