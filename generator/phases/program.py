"""A program cut into steps: the answer of :func:`comfuse.generator.phases.split`."""

from __future__ import annotations

from dataclasses import dataclass

from comfuse.generator.spec import FusedSpec


@dataclass(frozen=True)
class Phase:
    """One sweep over a tile.  Numbers are indices into the spec's nodes, operands or outputs."""

    content: int  # node that the accumulators hold at the start: the (first) GEMM or what was kept last
    keep: int | None  # node that they hold from here on, if another
    tiles: tuple[int, ...]  # tile operands read, in order of first use
    columns: tuple[int, ...]  # values a row, in order of dependency
    groups: tuple[int, ...]  # values a row and group of columns, in order of dependency
    lets: tuple[int, ...]  # tile nodes evaluated once and used by name, in order of dependency
    reductions: tuple[int, ...]  # reduction nodes of all kinds, in order of first evaluation
    waits: bool  # whether the tiles of a row block wait for each other's row reductions behind it
    columns_wait: bool  # whether those of a block of columns wait for each other's column reductions
    stores: tuple[int, ...]  # outputs
    cost: float  # issue slots an element


@dataclass(frozen=True)
class RowTail:
    """What the last tile of a row block to arrive computes: values a row that are stored, no more."""

    columns: tuple[int, ...]  # values a row, in order of dependency
    stores: tuple[int, ...]  # outputs


@dataclass(frozen=True)
class PhaseProgram:
    """The phases of a program, what follows them, and what was decided on the way, for people.

    No tile waits for what is computed behind the phases: the last one to arrive does the work.  Where tiles
    wait for column reductions, the first one of a block of columns has them and stores what reads them.
    """

    spec: FusedSpec
    phases: tuple[Phase, ...]
    row_tail: RowTail | None  # by the last tile of a row block
    column_stores: tuple[int, ...]  # (N,) outputs, by the last (or first) tile of a block of columns
    full_stores: tuple[int, ...]  # () outputs, by the last tile of all
    decisions: tuple[str, ...]

    @property
    def reductions(self) -> tuple[int, ...]:
        """All reduction nodes; the position here is a reduction's index in the kernel."""
        return tuple(r for phase in self.phases for r in phase.reductions)

    @property
    def waits(self) -> bool:
        """Whether the tiles of a row block wait for each other at all."""
        return any(phase.waits for phase in self.phases)

    @property
    def columns_wait(self) -> bool:
        """Whether the tiles of a block of columns wait for each other, so that all have to run at once."""
        return any(phase.columns_wait for phase in self.phases)

    @property
    def cost(self) -> float:
        """Issue slots an element, all phases."""
        return sum(phase.cost for phase in self.phases)
