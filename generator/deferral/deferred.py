"""A chain with its middle reductions deferred: the answer of :func:`comfuse.generator.deferral.defer`."""

from __future__ import annotations

from dataclasses import dataclass

from comfuse.generator.chain import ChainSpec


@dataclass(frozen=True)
class Deferred:
    """A chain; one of two links may have a first that hands on more than the second GEMM's A.

    Attributes:
        links: of the first, output 0 is that A and the others are values a row, float32.  Operands of the
            second are its own, then a COLUMN for each of those outputs, then a ROW for each of ``vectors``.
        vectors: ROW or SCALAR nodes of the first link, as vectors c of its columns: the operand is c @ W1.T.
        peak: the reduction of the first link that its output 0 reads: the largest value of the row, of which
            a kernel takes the largest so far.  None: it reads none.
        shifted: whether a value of its row is added to what the second GEMM gives of that A, which may cancel
            most of it, and leave the rounding of A.
    """

    links: ChainSpec
    vectors: tuple[int, ...] = ()
    peak: int | None = None
    shifted: bool = False
