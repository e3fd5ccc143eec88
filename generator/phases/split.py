"""Which value the accumulators hold in each phase, and what each phase evaluates from it.

A phase is one sweep over the finished tile.  Between phases the accumulator registers hold one (M, N) value:
the (first) GEMM's result, or one that a phase kept in its place; that of a second GEMM stays beside it.
Everything else that later phases need is recomputed from them, from operands and from statistics.  Which
value to keep is decided by cost.
"""

from __future__ import annotations

from functools import lru_cache

from comfuse.generator.errors import PlanError
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases.decisions import decisions
from comfuse.generator.phases.levels import Levels, axis, levels
from comfuse.generator.phases.price import KEEP_COST, effects_price, price
from comfuse.generator.phases.program import Phase, PhaseProgram, RowTail
from comfuse.generator.phases.reads import per_row, values_of_tiles
from comfuse.generator.spec import FusedSpec, Space


@lru_cache(maxsize=256)
def split(spec: FusedSpec, whole_rows: bool = False) -> PhaseProgram:
    """The cheapest phase program of a normalised spec.

    ``whole_rows``: a tile holds whole rows, and stores what their reductions give in a phase of its own.

    Raises:
        PlanError: naming the node: a tile reads a full reduction, or an output needs a column one too.
    """
    return Splitter(spec, levels(spec, whole_rows)).program()


class Splitter:
    """The choice of kept values for one spec; ``program`` is the answer, the rest is for the tests."""

    def __init__(self, spec: FusedSpec, when: Levels) -> None:
        self.spec = spec
        self.when = when
        self.level = when.level
        self.spaces = spaces(spec)
        self.gemm = next(i for i, node in enumerate(spec.nodes) if node.op == "gemm" and node.product == 0)
        self.reductions = [i for i, node in enumerate(spec.nodes) if node.op in REDUCTIONS]
        stored = [o.node for i, o in enumerate(spec.outputs) if when.is_in_phase(i)]
        last_store = max((self.level[i] for i in stored), default=0)
        self.count = 1 + max([last_store, *(self.phase_of(r) for r in self.reductions)])

    # --- what a phase evaluates ---

    def phase_of(self, reduction: int) -> int:
        """The phase whose elements a reduction runs over."""
        return self.level[self.spec.nodes[reduction].inputs[0]]

    def reductions_of(self, phase: int) -> tuple[int, ...]:
        return tuple(r for r in self.reductions if self.phase_of(r) == phase)

    def stores_of(self, phase: int) -> tuple[int, ...]:
        return tuple(
            i
            for i, o in enumerate(self.spec.outputs)
            if self.level[o.node] == phase and self.when.is_in_phase(i)
        )

    def targets(self, phase: int) -> tuple[int, ...]:
        """Nodes that the effects of a phase read, its keep left out."""
        reduced = [self.spec.nodes[r].inputs[0] for r in self.reductions_of(phase)]
        stored = [self.spec.outputs[i].node for i in self.stores_of(phase)]
        return (*reduced, *stored)

    def evaluated(self, content: int, targets: tuple[int, ...]) -> list[int] | None:
        """Nodes evaluated element by element to have the targets; None if that needs a lost GEMM.

        In the order of the spec, ``content`` left out.
        """
        found = values_of_tiles(self.spec, content, targets)
        return None if self.gemm in found else found

    # --- which value to keep at each boundary ---

    def contents(self) -> list[int]:
        """What the accumulators hold at the start of each phase: dynamic program over the boundaries."""
        best: dict[int, tuple[float, tuple[int, ...]]] = {self.gemm: (0.0, (self.gemm,))}
        for phase in range(self.count - 1):
            after: dict[int, tuple[float, tuple[int, ...]]] = {}
            for content, (cost, path) in best.items():
                for kept in self._candidates(phase, content):
                    step = self.step_cost(phase, content, kept)
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
            if (step := self.step_cost(last, content, content)) is not None
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
            for i in self._read_after(phase)
            if self.spec.nodes[i].op in ELEMENTWISE and self.level[i] <= phase and i != content
        ]
        return [content, *useful]

    def _read_after(self, phase: int) -> list[int]:
        """Tile nodes that the targets of later phases need."""
        found: set[int] = set()
        stack = [t for later in range(phase + 1, self.count) for t in self.targets(later)]
        while stack:
            i = stack.pop()
            if i not in found and self.spaces[i] is Space.TILE:
                found.add(i)
                stack.extend(self.spec.nodes[i].inputs)
        return sorted(found)

    def step_cost(self, phase: int, content: int, kept: int) -> float | None:
        """Issue slots an element of a phase; None if it cannot be had."""
        targets = self.targets(phase) if kept == content else (kept, *self.targets(phase))
        evaluated = self.evaluated(content, targets)
        if evaluated is None:
            return None
        effects = effects_price(self.spec, self.reductions_of(phase), self.stores_of(phase))
        return price(self.spec, evaluated) + effects + (KEEP_COST if kept != content else 0.0)

    # --- the result ---

    def program(self) -> PhaseProgram:
        contents = self.contents()
        phases = []
        for phase, content in enumerate(contents):
            following = contents[phase + 1] if phase + 1 < len(contents) else content
            phases.append(self._phase(phase, content, following if following != content else None))
        when = self.when
        return PhaseProgram(
            self.spec,
            tuple(phases),
            self._row_tail(),
            when.column_tail,
            when.full_tail,
            decisions(self.spec, phases, when),
        )

    def _row_tail(self) -> RowTail | None:
        if not self.when.row_tail:
            return None
        targets = tuple(self.spec.outputs[o].node for o in self.when.row_tail)
        return RowTail(per_row(self.spec, Space.COLUMN, [], targets), self.when.row_tail)

    def _phase(self, phase: int, content: int, keep: int | None) -> Phase:
        targets = self.targets(phase) if keep is None else (keep, *self.targets(phase))
        evaluated = self.evaluated(content, targets)
        cost = self.step_cost(phase, content, content if keep is None else keep)
        assert evaluated is not None
        assert cost is not None
        groups = per_row(self.spec, Space.GROUP, evaluated, targets)
        reductions = self.reductions_of(phase)
        return Phase(
            content=content,
            keep=keep,
            tiles=self._tiles(evaluated, targets),
            columns=per_row(self.spec, Space.COLUMN, [*evaluated, *self._behind(groups)], targets),
            groups=groups,
            lets=self._lets(evaluated, targets),
            reductions=reductions,
            waits=any(r in self.when.waited for r in reductions),
            columns_wait=self.when.columns_wait and any(axis(self.spec, r) == "col" for r in reductions),
            stores=self.stores_of(phase),
            cost=cost,
        )

    def _tiles(self, evaluated: list[int], targets: tuple[int, ...]) -> tuple[int, ...]:
        # What a reduction that is read has reduced was read in another phase.
        read = [j for i in evaluated if axis(self.spec, i) is None for j in self.spec.nodes[i].inputs]
        loads = [j for j in (*read, *targets) if self.spec.nodes[j].op == "load"]
        operands = [self.spec.nodes[j].operand for j in loads if self.spaces[j] is Space.TILE]
        return tuple(dict.fromkeys(o for o in operands if o is not None))

    def _behind(self, groups: tuple[int, ...]) -> list[int]:
        """All values of a group that these are computed from."""
        found: set[int] = set()
        stack = list(groups)
        while stack:
            i = stack.pop()
            if i not in found and self.spaces[i] is Space.GROUP and axis(self.spec, i) is None:
                found.add(i)
                stack.extend(self.spec.nodes[i].inputs)
        return sorted(found)

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
