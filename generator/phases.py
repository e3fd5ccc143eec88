"""FusedSpec -> PhaseProgram: in which steps the epilogue computes a program.

A phase is one sweep over the finished tile.  What needs no reduction is phase 0; a value that reads a
row reduction of a value of phase p is phase p + 1.  Between phases the accumulator registers hold one
(M, N) value: the GEMM's result, or one that a phase kept in its place.  Everything else that later phases
need is recomputed from it, from operands and from statistics.  Which value to keep is decided by cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from comfuse.generator.errors import PlanError
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Space

# Issue slots an element, beside the ops' own costs of the op table.
LOAD_COST = {Space.TILE: 8.0, Space.ROW: 1.0, Space.COLUMN: 0.25, Space.SCALAR: 0.0}
KEEP_COST = 0.5


@dataclass(frozen=True)
class Phase:
    """One sweep.  Numbers are indices into the spec's nodes, operands or outputs."""

    content: int  # node that the accumulators hold at the start: the GEMM or what was kept last
    keep: int | None  # node that they hold from here on, if another
    tiles: tuple[int, ...]  # tile operands read, in order of first use
    columns: tuple[int, ...]  # per-row nodes evaluated, in order of dependency
    lets: tuple[int, ...]  # tile nodes evaluated once and used by name, in order of dependency
    reductions: tuple[int, ...]  # reduction nodes, in order of first evaluation
    stores: tuple[int, ...]  # outputs
    cost: float  # issue slots an element


@dataclass(frozen=True)
class PhaseProgram:
    """The phases of a program, and what was decided on the way, for people."""

    spec: FusedSpec
    phases: tuple[Phase, ...]
    decisions: tuple[str, ...]

    @property
    def reductions(self) -> tuple[int, ...]:
        """All reduction nodes; the position here is a reduction's index in the kernel."""
        return tuple(r for phase in self.phases for r in phase.reductions)

    @property
    def cost(self) -> float:
        """Issue slots an element, all phases."""
        return sum(phase.cost for phase in self.phases)


@lru_cache(maxsize=256)
def split(spec: FusedSpec) -> PhaseProgram:
    """The cheapest phase program of a normalised spec.

    Raises:
        PlanError: never for a verified spec; states node and reason if an invariant is broken.
    """
    return _Splitter(spec).program()


class _Splitter:
    def __init__(self, spec: FusedSpec) -> None:
        self.spec = spec
        self.spaces = spaces(spec)
        self.gemm = next(i for i, node in enumerate(spec.nodes) if node.op == "gemm")
        self.level = self._levels()
        self.reductions = [i for i, node in enumerate(spec.nodes) if node.op in REDUCTIONS]
        last_output = max(self.level[o.node] for o in spec.outputs)
        self.count = 1 + max([last_output, *(self.level[r] for r in self.reductions)])

    def _levels(self) -> list[int]:
        """The earliest phase in which each node's value can be had."""
        level: list[int] = []
        for node in self.spec.nodes:
            earliest = max((level[i] for i in node.inputs), default=0)
            level.append(earliest + 1 if node.op in REDUCTIONS else earliest)
        return level

    # --- what a phase evaluates ---

    def reductions_of(self, phase: int) -> tuple[int, ...]:
        return tuple(r for r in self.reductions if self.level[r] == phase + 1)

    def stores_of(self, phase: int) -> tuple[int, ...]:
        return tuple(i for i, o in enumerate(self.spec.outputs) if self.level[o.node] == phase)

    def targets(self, phase: int) -> tuple[int, ...]:
        """Nodes that the effects of a phase read, its keep left out."""
        reduced = [self.spec.nodes[r].inputs[0] for r in self.reductions_of(phase)]
        stored = [self.spec.outputs[i].node for i in self.stores_of(phase)]
        return (*reduced, *stored)

    def evaluated(self, content: int, targets: tuple[int, ...]) -> list[int] | None:
        """Nodes that are not per-row, evaluated to have the targets; None if that needs a lost GEMM.

        In the order of the spec, ``content`` left out.  Per-row nodes stop the walk: they come from
        statistics and column operands.
        """
        found: set[int] = set()
        stack = list(targets)
        while stack:
            i = stack.pop()
            if i in found or i == content or self.spaces[i] is Space.COLUMN:
                continue
            if i == self.gemm:
                return None
            found.add(i)
            stack.extend(self.spec.nodes[i].inputs)
        return sorted(found)

    def cost_of(self, evaluated: list[int]) -> float:
        cost = 0.0
        for i in evaluated:
            node = self.spec.nodes[i]
            if node.op == "load":
                cost += LOAD_COST[self.spaces[i]]
            elif node.op in ELEMENTWISE and self.spaces[i] is not Space.SCALAR:
                cost += ELEMENTWISE[node.op].cost
        return cost

    def effects_cost(self, phase: int) -> float:
        """What does not depend on what is kept."""
        reduced = sum(REDUCTIONS[self.spec.nodes[r].op].cost for r in self.reductions_of(phase))
        stored = sum(self.spaces[self.spec.outputs[i].node] is Space.TILE for i in self.stores_of(phase))
        return reduced + 2.0 * stored

    # --- which value to keep at each boundary ---

    def contents(self) -> list[int]:
        """What the accumulators hold at the start of each phase: dynamic program over the boundaries."""
        best: dict[int, tuple[float, tuple[int, ...]]] = {self.gemm: (0.0, (self.gemm,))}
        for phase in range(self.count - 1):
            after: dict[int, tuple[float, tuple[int, ...]]] = {}
            for content, (cost, path) in best.items():
                for kept in self._candidates(phase, content):
                    step = self._step_cost(phase, content, kept)
                    if step is None:
                        continue
                    plan = (cost + step, (*path, kept))
                    if kept not in after or plan < after[kept]:
                        after[kept] = plan
            best = after
        last = self.count - 1
        finished = [
            (cost + step, path)
            for content, (cost, path) in best.items()
            if (step := self._step_cost(last, content, content)) is not None
        ]
        if not finished:
            raise PlanError(
                "no value can be kept from which the rest follows", self.spec.nodes[self.gemm].name
            )
        # On equal cost the plan that keeps the earlier nodes, so that the answer is unique.
        return list(min(finished)[1])

    def _candidates(self, phase: int, content: int) -> list[int]:
        """What may be held after a phase: what is held already, or any tile value that exists by then."""
        useful = [
            i
            for i in self.read_after(phase)
            if self.spec.nodes[i].op in ELEMENTWISE and self.level[i] <= phase and i != content
        ]
        return [content, *useful]

    def read_after(self, phase: int) -> list[int]:
        """Tile nodes that the targets of later phases need."""
        found: set[int] = set()
        stack = [t for later in range(phase + 1, self.count) for t in self.targets(later)]
        while stack:
            i = stack.pop()
            if i not in found and self.spaces[i] is Space.TILE:
                found.add(i)
                stack.extend(self.spec.nodes[i].inputs)
        return sorted(found)

    def _step_cost(self, phase: int, content: int, kept: int) -> float | None:
        targets = self.targets(phase) if kept == content else (kept, *self.targets(phase))
        evaluated = self.evaluated(content, targets)
        if evaluated is None:
            return None
        return self.cost_of(evaluated) + self.effects_cost(phase) + (KEEP_COST if kept != content else 0.0)

    # --- the result ---

    def program(self) -> PhaseProgram:
        contents = self.contents()
        phases = []
        for phase, content in enumerate(contents):
            following = contents[phase + 1] if phase + 1 < len(contents) else content
            phases.append(self._phase(phase, content, following if following != content else None))
        return PhaseProgram(self.spec, tuple(phases), tuple(self._decisions(phases)))

    def _phase(self, phase: int, content: int, keep: int | None) -> Phase:
        targets = self.targets(phase) if keep is None else (keep, *self.targets(phase))
        evaluated = self.evaluated(content, targets)
        cost = self._step_cost(phase, content, content if keep is None else keep)
        assert evaluated is not None
        assert cost is not None
        return Phase(
            content=content,
            keep=keep,
            tiles=self._tiles(evaluated, targets),
            columns=self._columns(evaluated, targets),
            lets=self._lets(evaluated, targets),
            reductions=self.reductions_of(phase),
            stores=self.stores_of(phase),
            cost=cost,
        )

    def _tiles(self, evaluated: list[int], targets: tuple[int, ...]) -> tuple[int, ...]:
        read = [j for i in evaluated for j in self.spec.nodes[i].inputs]
        operands = [self.spec.nodes[j].operand for j in (*read, *targets) if self.spaces[j] is Space.TILE]
        return tuple(dict.fromkeys(o for o in operands if o is not None))

    def _columns(self, evaluated: list[int], targets: tuple[int, ...]) -> tuple[int, ...]:
        """Per-row nodes that tile nodes or stores read, and computed ones that several of them share."""
        nodes = self.spec.nodes
        read = [j for i in evaluated for j in nodes[i].inputs if self.spaces[j] is Space.COLUMN]
        read += [t for t in targets if self.spaces[t] is Space.COLUMN]
        columns = set(read)
        readers: dict[int, int] = {}
        reached = set(read)
        for i in reversed(range(len(nodes))):
            if i not in reached or nodes[i].op not in ELEMENTWISE:
                continue
            for j in nodes[i].inputs:
                if self.spaces[j] is Space.COLUMN:
                    reached.add(j)
                    readers[j] = readers.get(j, 0) + 1
        columns.update(j for j, count in readers.items() if count > 1 and nodes[j].op in ELEMENTWISE)
        return tuple(sorted(columns))

    def _lets(self, evaluated: list[int], targets: tuple[int, ...]) -> tuple[int, ...]:
        """Nodes with several readers, so that each is evaluated once an element."""
        nodes = self.spec.nodes
        readers = {i: targets.count(i) for i in evaluated}
        for i in evaluated:
            for j in nodes[i].inputs:
                if j in readers:
                    readers[j] += 1
        return tuple(i for i in evaluated if readers[i] > 1 and self._is_worth_naming(i))

    def _is_worth_naming(self, i: int) -> bool:
        """False for what costs nothing to read again: scalars, constants, row vectors."""
        if self.spec.nodes[i].op in ELEMENTWISE:
            return self.spaces[i] in (Space.TILE, Space.ROW)
        return self.spaces[i] is Space.TILE  # an operand's tile

    # --- for people ---

    def _decisions(self, phases: list[Phase]) -> list[str]:
        nodes = self.spec.nodes
        said: list[str] = []
        evaluated_before: dict[int, int] = {}
        for number, phase in enumerate(phases):
            targets = self.targets(number) if phase.keep is None else (phase.keep, *self.targets(number))
            evaluated = self.evaluated(phase.content, targets) or []
            for i in evaluated:
                if self.spaces[i] is not Space.TILE:
                    continue
                if i in evaluated_before and nodes[i].op == "load":
                    said.append(f"{nodes[i].name} is loaded again in phase {number}")
                elif i in evaluated_before:
                    holds = nodes[phase.content].name
                    said.append(
                        f"{nodes[i].name} is recomputed in phase {number}: the accumulators hold {holds}"
                    )
                evaluated_before.setdefault(i, number)
            if phase.keep is not None:
                said.append(f"{nodes[phase.keep].name} is kept in the accumulators from phase {number} on")
            elif number + 1 < len(phases) and number == 0:
                said.append(f"{nodes[phase.content].name} stays in the accumulators")
        return said
