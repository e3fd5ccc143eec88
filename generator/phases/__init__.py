"""FusedSpec -> PhaseProgram: in which steps the epilogue computes a program."""

from __future__ import annotations

from comfuse.generator.phases.access import moves_rows
from comfuse.generator.phases.levels import axis
from comfuse.generator.phases.program import Phase, PhaseProgram, RowTail
from comfuse.generator.phases.reads import per_row
from comfuse.generator.phases.split import split

__all__ = ["Phase", "PhaseProgram", "RowTail", "axis", "moves_rows", "per_row", "split"]
