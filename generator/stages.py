"""Cuts a program whose tiles read column or full reductions into several, each one kernel.

Such a reduction is complete only when all tiles are, so that no tile can wait for it unless all of them run
at once (:mod:`comfuse.generator.kernels` knows when).  The program becomes stages that run one after the
other: the first computes the statistics and stores them as float32, the next repeats the GEMM and reads them
as operands.  BatchNorm in training is two stages; a second BatchNorm of its result makes three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from comfuse.generator.errors import PlanError
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes import normalize
from comfuse.generator.passes.graph import distinct
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Node, Operand, Output, Space

_OF_ROWS = (Space.TILE, Space.COLUMN, Space.GROUP)


@dataclass(frozen=True)
class Source:
    """Where an operand of a stage comes from.

    ``stage`` is None for operand ``index`` of the whole program; otherwise it is output ``index`` of that
    earlier stage.  An output of shape () is read by an operand of shape (N,) or (M,), expanded.
    """

    stage: int | None
    index: int


@dataclass(frozen=True)
class Stage:
    """One kernel of a program.

    ``operands`` says for each operand of ``spec`` where it comes from, ``outputs`` for each output which one
    of the whole it is; None is a statistic that only later stages read.
    """

    spec: FusedSpec
    operands: tuple[Source, ...]
    outputs: tuple[int | None, ...]


@lru_cache(maxsize=256)
def stages(spec: FusedSpec) -> tuple[Stage, ...]:
    """The stages of a program, normalised: one, unless a tile reads a column or full reduction.

    Raises:
        SpecError: the spec is malformed.
        PlanError: a value combines reductions in a way that no stage can store; states node and reason.
    """
    spec = normalize(spec)
    when = _when(spec)
    last = max(when.stage[o.node] for o in spec.outputs)
    if last == 0:
        return (whole(spec),)
    return tuple(_Cut(spec, when, stage).result() for stage in range(last + 1))


def whole(spec: FusedSpec) -> Stage:
    """A normalised program as its only stage."""
    sources = tuple(Source(None, i) for i in range(len(spec.operands)))
    return Stage(spec, sources, tuple(range(len(spec.outputs))))


@dataclass(frozen=True)
class _When:
    """For each node of a program the first stage that has it, and whether only the end of that one does."""

    stage: tuple[int, ...]
    at_the_end: tuple[bool, ...]

    def statistics(self, spec: FusedSpec, stage: int) -> list[int]:
        """The values that a stage stores for later ones."""
        read = {j for i, node in enumerate(spec.nodes) if self.stage[i] > stage for j in node.inputs}
        return [i for i in sorted(read) if self.stage[i] == stage and self.at_the_end[i]]


def _when(spec: FusedSpec) -> _When:
    stage: list[int] = []
    late: list[frozenset[str]] = []  # the reductions of its stage that a node has to wait for, by axis
    for node, space in zip(spec.nodes, spaces(spec), strict=True):
        earliest = max((stage[i] for i in node.inputs), default=0)
        kinds = frozenset(kind for i in node.inputs if stage[i] == earliest for kind in late[i])
        if kinds and (space in _OF_ROWS or (space is Space.ROW and "full" in kinds)):
            earliest, kinds = earliest + 1, frozenset()
        if space is Space.SCALAR and any(stage[i] < earliest and late[i] for i in node.inputs):
            raise PlanError("combines full reductions that are complete at different times", node.name)
        axis = REDUCTIONS[node.op].axis if node.op in REDUCTIONS else None
        stage.append(earliest)
        late.append(kinds | {axis} if axis in ("col", "full") else kinds)
    return _When(tuple(stage), tuple(map(bool, late)))


class _Cut:
    """One stage under construction: the nodes that its outputs need, down to what earlier stages give."""

    def __init__(self, whole: FusedSpec, when: _When, stage: int) -> None:
        self.whole = whole
        self.spaces = spaces(whole)
        self.when = when
        self.stage = stage
        self.operands: list[Operand] = []
        self.sources: list[Source] = []
        self.nodes: list[Node] = []
        self.places: dict[tuple[int, Space | None], int] = {}
        for i, node in enumerate(whole.nodes):
            if node.op == "gemm":
                self.place(i)

    def result(self) -> Stage:
        outputs = [
            (i, replace(output, node=self.place(output.node)))
            for i, output in enumerate(self.whole.outputs)
            if self.when.stage[output.node] == self.stage and self._can_store(output)
        ]
        taken = {o.name for o in self.whole.outputs}
        statistics = [
            Output(distinct(self.whole.nodes[i].name, taken), self.place(i), DType.FP32)
            for i in self.when.statistics(self.whole, self.stage)
        ]
        spec = replace(
            self.whole,
            operands=tuple(self.operands),
            nodes=tuple(self.nodes),
            outputs=(*(output for _, output in outputs), *statistics),
        )
        wholes = (*(i for i, _ in outputs), *(None for _ in statistics))
        return Stage(normalize(spec), tuple(self.sources), wholes)

    def _can_store(self, output: Output) -> bool:
        if self.spaces[output.node] is Space.ROW and not self.when.at_the_end[output.node]:
            raise PlanError(
                "is a value a column that reads a reduction over everything, which is complete only when all"
                " columns are; store the reduction and combine them outside",
                self.whole.nodes[output.node].name,
            )
        return True

    def place(self, i: int, reader: Space | None = None) -> int:
        """The node of this stage that is node ``i`` of the whole, for a reader of this space."""
        source = self._source(i)
        space: Space | None = None
        if source is not None:
            # A number from an earlier stage comes as a vector that its reader varies over anyway.
            by_row = self.spaces[i] is Space.SCALAR and reader in (Space.COLUMN, Space.GROUP)
            space = Space.COLUMN if by_row else Space.ROW
        if (i, space) not in self.places:
            self.places[i, space] = self._add(i, source, space)
        return self.places[i, space]

    def _source(self, i: int) -> Source | None:
        """The output of an earlier stage that a value is."""
        stage = self.when.stage[i]
        if stage >= self.stage or not self.when.at_the_end[i]:
            return None
        stored = sum(self.when.stage[o.node] == stage for o in self.whole.outputs)
        return Source(stage, stored + self.when.statistics(self.whole, stage).index(i))

    def _add(self, i: int, source: Source | None, space: Space | None) -> int:
        node = self.whole.nodes[i]
        if source is not None and space is not None:
            taken = {o.name for o in (*self.whole.operands, *self.operands)}
            return self._load(node.name, Operand(distinct(node.name, taken), space), source)
        if node.op == "load":
            assert node.operand is not None
            return self._load(node.name, self.whole.operands[node.operand], Source(None, node.operand))
        inputs = tuple(self.place(j, self.spaces[i]) for j in node.inputs)
        return self._append(replace(node, inputs=inputs))

    def _load(self, name: str, operand: Operand, source: Source) -> int:
        self.operands.append(operand)
        self.sources.append(source)
        return self._append(Node(name, "load", operand=len(self.operands) - 1))

    def _append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1
