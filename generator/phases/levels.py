"""When each value of a program can be had: in which phase at the earliest, or only behind the last one.

What needs no reduction is phase 0.  A value that reads a row or group reduction of a value of phase p is
phase p + 1, and so is one of a tile that reads a column reduction: then all tiles run at once, and those of a
block of columns wait for each other.  Other column reductions, and full ones, are left to tails behind all
phases, and so are values a row that are stored and that no tile has to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

from comfuse.generator.errors import PlanError
from comfuse.generator.ops import REDUCTIONS, Axis
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Space

_OF_TILES = (Space.TILE, Space.GROUP)
_READABLE = ("row", "group")  # axes whose results later phases can read
_SEVERAL_KERNELS = "comfuse.generator.stages cuts such a program into several kernels"


@dataclass(frozen=True)
class Levels:
    """For each node of a spec, when.

    Attributes:
        level: the earliest phase in which the node can be had; of a reduction that no phase reads, the phase
            of its input.
        waited: row reductions that the tiles of a row block wait for.
        columns_wait: whether the tiles of a block of columns wait for each other: some phase reads a column
            reduction, and then all of them are exchanged.
        row_tail: outputs of values a row that are left to the last tile of a row block.
        column_tail: outputs that read column reductions.
        full_tail: outputs that read full reductions.
    """

    level: tuple[int, ...]
    waited: frozenset[int]
    columns_wait: bool
    row_tail: tuple[int, ...]
    column_tail: tuple[int, ...]
    full_tail: tuple[int, ...]

    def is_in_phase(self, output: int) -> bool:
        """Whether a phase stores an output."""
        return output not in (*self.row_tail, *self.column_tail, *self.full_tail)


def levels(spec: FusedSpec, whole_rows: bool = False) -> Levels:
    """When each node of a normalised spec can be had.

    ``whole_rows``: a tile holds whole rows, so that no row reduction is left to the last tile of several.

    Raises:
        PlanError: naming the node: it needs a full reduction sooner than there is one.
    """
    late = _needs_all_tiles(spec)
    columns_wait = _tiles_read_columns(spec)
    readable = (*_READABLE, "col") if columns_wait else _READABLE
    level: list[int] = []
    for i, node in enumerate(spec.nodes):
        earliest = max((level[j] for j in node.inputs), default=0)
        level.append(earliest + 1 if axis(spec, i) in readable else earliest)
    waited = _waited(spec, level, whole_rows)
    column_tail, full_tail = (
        tuple(o for o, output in enumerate(spec.outputs) if kind in late[output.node])
        for kind in ("col", "full")
    )
    return Levels(tuple(level), waited, columns_wait, _row_tail(spec, waited), column_tail, full_tail)


def axis(spec: FusedSpec, i: int) -> Axis | None:
    """What a node reduces over; None if it does not reduce."""
    reduction = REDUCTIONS.get(spec.nodes[i].op)
    return None if reduction is None else reduction.axis


def _waited(spec: FusedSpec, level: list[int], whole_rows: bool) -> frozenset[int]:
    """Row reductions that tiles read, and those beside them: where tiles wait anyway, no tail is cheaper.

    All of them, where a tile waits for itself only.
    """
    if whole_rows:
        return frozenset(i for i in range(len(level)) if axis(spec, i) == "row")
    fed_back = _row_reductions_behind(spec, [i for i, s in enumerate(spaces(spec)) if s in _OF_TILES])
    waits = {level[r] for r in fed_back}
    return frozenset(i for i in range(len(level)) if axis(spec, i) == "row" and level[i] in waits)


def _row_reductions_behind(spec: FusedSpec, start: list[int]) -> set[int]:
    """Row reductions that these nodes read, directly or through values a row."""
    found: set[int] = set()
    seen: set[int] = set()
    stack = list(start)
    while stack:
        i = stack.pop()
        if axis(spec, i) == "row":
            found.add(i)
            continue
        inputs = [j for j in spec.nodes[i].inputs if spaces(spec)[j] is Space.COLUMN and j not in seen]
        seen.update(inputs)
        stack += inputs
    return found


def _row_tail(spec: FusedSpec, waited: frozenset[int]) -> tuple[int, ...]:
    return tuple(
        o
        for o, output in enumerate(spec.outputs)
        if spaces(spec)[output.node] is Space.COLUMN and _row_reductions_behind(spec, [output.node]) - waited
    )


def _tiles_read_columns(spec: FusedSpec) -> bool:
    """Whether a value of a tile reads a column reduction, directly or through values a column."""
    reads = [False] * len(spec.nodes)  # for each value a column
    for i, node in enumerate(spec.nodes):
        read = axis(spec, i) == "col" or any(reads[j] for j in node.inputs)
        if read and spaces(spec)[i] is Space.TILE:
            return True
        reads[i] = read
    return False


def _needs_all_tiles(spec: FusedSpec) -> list[dict[str, str]]:
    """For each value a column, and one in all, the kinds of reductions that it reads, with a name of each."""
    late: list[dict[str, str]] = []
    for i, node in enumerate(spec.nodes):
        read = {kind: name for j in node.inputs for kind, name in late[j].items()}
        _check_late(spec, i, read)
        own = axis(spec, i)
        if own in ("col", "full"):
            late.append({own: node.name})
        else:
            late.append(read if spaces(spec)[i] in (Space.ROW, Space.SCALAR) else {})
    return late


def _check_late(spec: FusedSpec, i: int, read: dict[str, str]) -> None:
    node, space = spec.nodes[i], spaces(spec)[i]
    if "full" not in read or space is Space.SCALAR:
        return
    what, complete = ("a value a column reads", "columns") if space is Space.ROW else ("reads", "tiles")
    raise PlanError(
        f"{what} {read['full']!r}, which is complete only when all {complete} are; {_SEVERAL_KERNELS}",
        node.name,
    )
