"""How the tiles of a program lie in memory."""

from __future__ import annotations

from comfuse.generator.spec import FusedSpec, Operand, Output

ROW_BYTES = 16  # rows that are moved whole start at multiples of it, as TMA and vector stores demand
RUN = 8  # neighbouring columns of a row that one thread holds


def moves_rows(spec: FusedSpec, tile: Operand | Output) -> bool:
    """Whether an (M, N) operand comes by TMA, or an (M, N) output leaves in runs of eight columns.

    Otherwise threads read or write it at any strides, element by element if need be: where the spec says so,
    and where rows of N elements do not all start at multiples of 16 bytes.
    """
    if tile.strided or (isinstance(tile, Output) and tile.heads is not None):
        return False
    return spec.n % RUN == 0 and spec.n * tile.dtype.nbytes % ROW_BYTES == 0
