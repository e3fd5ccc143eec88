"""The tiles of a kernel and its clusters (comfuse/sm90/scheduler.hpp), compiled for the host."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np

from tests.functors.host import compile_for_host

STUBS = Path(__file__).parent / "stubs"


def test_each_tile_once_and_clusters_of_neighbours(tmp_path: Path) -> None:
    """Phantoms are what lies outside; tiles that wait for their row block come row block by row block."""
    host = compile_for_host(tmp_path, (STUBS / "tiles.cpp").read_text(), STUBS)
    for tiles_n, cluster, clusters, row_blocks in itertools.product(
        (1, 2, 3, 7), ("1x1", "1x2", "2x1"), (1, 2, 3, 7, 66), (*range(1, 40), 128, 129)
    ):
        for order in ("any", "waiting"):
            computed = np.zeros(row_blocks * tiles_n, np.int32)
            walk = getattr(host, f"{order}_{tiles_n}_{cluster}")
            assert walk(clusters, row_blocks, ctypes.c_void_p(computed.ctypes.data)) == 0
            assert (computed == 1).all()
