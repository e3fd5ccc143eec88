"""The steps of what a chain's links but the last compute: of the first one block by block of its columns."""

from __future__ import annotations

from dataclasses import replace

from comfuse.generator.deferral import Deferred
from comfuse.generator.phases import PhaseProgram, RowTail, per_row, split
from comfuse.generator.spec import FusedSpec, Space


def split_middle(deferred: Deferred) -> PhaseProgram:
    """One phase, whose one store is what is handed on; of a link that reads a peak two, the second with it.

    Both are for each block.  The row tail, behind the last block, stores the values a row that are handed on.
    """
    first = deferred.links.links[0]
    tile, *columns = first.outputs
    program = split(replace(first, outputs=(tile,)))
    if not columns:
        return program
    stores = tuple(range(1, len(first.outputs)))
    targets = tuple(first.outputs[o].node for o in stores)
    tail = RowTail(per_row(first, Space.COLUMN, [], targets), stores)
    return replace(program, spec=first, row_tail=tail)


def split_further(deferred: Deferred) -> tuple[PhaseProgram, ...]:
    """Of each link between the first and the last, one phase over whole rows, whose store is handed on."""
    return tuple(split(link) for link in deferred.links.links[1:-1])


def why_not_in_blocks(deferred: Deferred, middle: PhaseProgram) -> str | None:
    """Why a kernel cannot run a middle block by block; None: it can."""
    first: FusedSpec = deferred.links.links[0]
    if deferred.peak is None:
        return None
    name = first.nodes[deferred.peak].name
    second = middle.phases[-1]
    if second.tiles:
        tiles = ", ".join(first.operands[o].name for o in second.tiles)
        return f"{tiles}: a tile that is read behind {name}; it can be read before it only"
    extra = [i for i in second.columns if i != deferred.peak]
    if extra:
        names = ", ".join(first.nodes[i].name for i in extra)
        return f"{names}: a value a row that is read, element by element, behind {name}"
    return None
