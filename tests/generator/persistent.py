"""A simulation of the persistent schedule, for the question whether it can deadlock.

It knows what the device code does in which order (csrc/include/comfuse/sm90/kernel.hpp), and nothing of
time: every agent advances as far as it can, until all are done or none can move.  No step of one agent
ever takes away what another waits for, so the order in which they move does not matter.  Agents of a CTA
are its producer of GEMM operands, its producer of tile operands, its consumer warpgroups, and its collector,
which takes partial results of column and full reductions.  Column reductions that phases read go from tile to
tile without it.  Tails are left out: whoever arrives last does the
work, and nobody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from comfuse.generator.plan import SCHEDULES

Tile = tuple[int, int]  # row block, tile along n


@dataclass(frozen=True)
class Machine:
    """A launch."""

    row_blocks: int
    tiles_n: int  # of a row block, phantoms left out
    cluster_n: int
    clusters: int  # in the grid, all resident
    schedule: str
    phases: int
    stages: int = 2  # of the GEMM's ring, in K blocks
    k_blocks: int = 3
    slots: int = 1  # of a ring of tile operands; each member of a team has one, for its rows
    loads: tuple[int, ...] = ()  # pieces of tile operands that each phase reads
    # Whether the tiles of a row block wait for each other behind each phase but the last; empty: always.
    waits: tuple[bool, ...] = ()
    # The same for the tiles of a block of columns; empty: never.
    column_waits: tuple[bool, ...] = ()
    collects: bool = False  # whether the consumers leave partial results to a collector
    cluster_m: int = 1  # row blocks of a cluster

    @property
    def teams(self) -> int:
        return SCHEDULES[self.schedule].teams

    @property
    def team_size(self) -> int:
        return SCHEDULES[self.schedule].team_size

    @property
    def clusters_n(self) -> int:
        return -(-self.tiles_n // self.cluster_n)

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def items(self) -> int:
        return -(-self.row_blocks // self.cluster_m) * self.clusters_n

    def is_phantom(self, tile: Tile) -> bool:
        block, n = tile
        return block >= self.row_blocks or n >= self.tiles_n

    def loads_of(self, phase: int) -> int:
        return self.loads[phase] if self.loads else 0

    def waits_behind(self, phase: int) -> bool:
        return self.waits[phase] if self.waits else True

    def columns_wait_behind(self, phase: int) -> bool:
        return bool(self.column_waits) and self.column_waits[phase]

    @property
    def last_phase_with_loads(self) -> int:
        return max((phase for phase, loads in enumerate(self.loads) if loads), default=-1)


@dataclass
class Cta:
    """What one CTA has done so far.  Items are counted in its own order."""

    machine: Machine
    cluster: int
    rank: int
    tiles: list[Tile] = field(default_factory=list)
    loaded: int = 0  # K blocks that its producer has issued
    multiplied: int = 0  # K blocks that its consumers have released
    piece_item: int = 0  # progress of the producer of tile operands
    piece_phase: int = 0
    pieces_of_phase: int = 0
    arrived: list[int] = field(default_factory=lambda: [0, 0])  # pieces in each member's ring, ever
    consumed: list[int] = field(default_factory=lambda: [0, 0])
    gemms_done: int = 0  # items whose GEMM is finished, in order
    item_of: list[int] = field(default_factory=list)  # the item that each warpgroup works on
    phase_of: list[int] = field(default_factory=list)
    read_of: list[int] = field(default_factory=list)  # pieces read in the phase
    in_epilogue: list[bool] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)  # the last item after which it gave up the slots' turn
    filled: list[int] = field(default_factory=list)  # the last item whose partial results it has left
    collected: int = 0  # items whose partial results the collector has taken, in order

    def __post_init__(self) -> None:
        m = self.machine
        warpgroups = m.teams * m.team_size
        self.item_of = [w // m.team_size for w in range(warpgroups)]
        self.phase_of, self.read_of = [0] * warpgroups, [0] * warpgroups
        self.in_epilogue = [False] * warpgroups
        self.passed = [-1] * warpgroups
        self.filled = [-1] * warpgroups
        for work in range(self.cluster, m.items, m.clusters):
            block, position = divmod(work, m.clusters_n)
            rank_m, rank_n = self.rank % m.cluster_m, self.rank % m.cluster_n
            self.tiles.append((block * m.cluster_m + rank_m, position * m.cluster_n + rank_n))

    def ring_of(self, warpgroup: int) -> int:
        """Each member of a team has a ring, which the teams use in turn."""
        return warpgroup % self.machine.team_size

    def done(self) -> bool:
        finished = all(item >= len(self.tiles) for item in self.item_of)
        return finished and (not self.machine.collects or self.collected == len(self.tiles))


class Simulation:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.ctas = [Cta(machine, c, r) for c in range(machine.clusters) for r in range(machine.cluster_size)]
        self.published: dict[tuple[Tile, int], int] = {}  # (tile, phase) -> warpgroups that have published

    def run(self) -> bool:
        """True if every CTA finishes."""
        while not all(cta.done() for cta in self.ctas):
            moved = [agent(cta) for cta in self.ctas for agent in self._agents()]
            if not any(moved):
                return False
        return True

    def _agents(self) -> list:
        consumers = [partial(self._consume, w=w) for w in range(self.machine.teams * self.machine.team_size)]
        return [self._produce_gemm, self._produce_pieces, self._collect, *consumers]

    # --- producers ---

    def _produce_gemm(self, cta: Cta) -> bool:
        """One K block.  A part of it is multicast, so a stage must be free in every CTA of the cluster."""
        peers = [c for c in self.ctas if c.cluster == cta.cluster]
        if cta.loaded >= len(cta.tiles) * self.machine.k_blocks:
            return False
        if any(cta.loaded - peer.multiplied >= self.machine.stages for peer in peers):
            return False
        cta.loaded += 1
        return True

    def _produce_pieces(self, cta: Cta) -> bool:
        """One piece of a tile operand in each ring; strictly in the order of items."""
        if cta.piece_item >= len(cta.tiles):
            return False
        if cta.pieces_of_phase >= self.machine.loads_of(cta.piece_phase):
            cta.pieces_of_phase = 0
            cta.piece_phase += 1
            if cta.piece_phase == self.machine.phases:
                cta.piece_phase = 0
                cta.piece_item += 1
            return True
        concerned = range(self.machine.team_size)
        if any(cta.arrived[w] - cta.consumed[w] >= self.machine.slots for w in concerned):
            return False
        for w in concerned:
            cta.arrived[w] += 1
        cta.pieces_of_phase += 1
        return True

    def _collect(self, cta: Cta) -> bool:
        """Takes what the warps of a team have left of the next item, phantoms included."""
        if not self.machine.collects or cta.collected >= len(cta.tiles):
            return False
        size = self.machine.team_size
        first = cta.collected % self.machine.teams * size
        if any(cta.filled[v] < cta.collected for v in range(first, first + size)):
            return False
        cta.collected += 1
        return True

    # --- consumers ---

    def _consume(self, cta: Cta, w: int) -> bool:
        item = cta.item_of[w]
        if item >= len(cta.tiles):
            return False
        if not cta.in_epilogue[w]:
            return self._multiply(cta, w, item)
        tile, phase, ring = cta.tiles[item], cta.phase_of[w], cta.ring_of(w)
        if sum(self.machine.loads) and not self._has_slot_turn(cta, item):
            return False
        if self.machine.collects and cta.collected <= item - self.machine.teams:
            return False  # the team's buffer still holds its item before
        if cta.read_of[w] == 0 and phase > 0:
            if self.machine.waits_behind(phase - 1) and not self._row_group_has(tile, phase - 1):
                return False
            if self.machine.columns_wait_behind(phase - 1) and not self._column_has(tile, phase - 1):
                return False
            if phase - 1 == self.machine.last_phase_with_loads:
                cta.passed[w] = item  # only now, behind the wait for the row group
        if cta.read_of[w] < self.machine.loads_of(phase):
            if cta.arrived[ring] == cta.consumed[ring]:
                return False
            cta.consumed[ring] += 1
            cta.read_of[w] += 1
            return True
        self.published[tile, phase] = self.published.get((tile, phase), 0) + 1
        cta.read_of[w] = 0
        cta.phase_of[w] += 1
        if cta.phase_of[w] == self.machine.phases:
            cta.phase_of[w] = 0
            cta.passed[w] = cta.filled[w] = item
            cta.in_epilogue[w] = False
            cta.item_of[w] += self.machine.teams
        return True

    def _has_slot_turn(self, cta: Cta, item: int) -> bool:
        """Whether the team of the item before has passed the turn to read tile operands."""
        size = self.machine.team_size
        before = (item - 1) % self.machine.teams * size
        return item == 0 or all(cta.passed[v] >= item - 1 for v in range(before, before + size))

    def _multiply(self, cta: Cta, w: int, item: int) -> bool:
        """One K block; items in turn.  A team's first warpgroup stands for all of it."""
        size = self.machine.team_size
        team = range(w // size * size, w // size * size + size)
        if w != team[0] or any(cta.item_of[v] != item or cta.in_epilogue[v] for v in team):
            return False
        if cta.gemms_done != item:
            return False
        peers = [c for c in self.ctas if c.cluster == cta.cluster]
        if any(peer.loaded <= cta.multiplied for peer in peers):
            return False
        cta.multiplied += 1
        if cta.multiplied == (item + 1) * self.machine.k_blocks:
            cta.gemms_done += 1
            for v in team:
                cta.in_epilogue[v] = True
        return True

    def _row_group_has(self, tile: Tile, phase: int) -> bool:
        """Whether all tiles of the row block have published; phantoms neither publish nor wait."""
        if self.machine.is_phantom(tile):
            return True
        block, _ = tile
        return all(
            self.published.get(((block, other), phase), 0) >= self.machine.team_size
            for other in range(self.machine.tiles_n)
        )

    def _column_has(self, tile: Tile, phase: int) -> bool:
        """Whether the tiles of all row blocks have published; phantoms neither publish nor wait."""
        if self.machine.is_phantom(tile):
            return True
        _, n = tile
        return all(
            self.published.get(((block, n), phase), 0) >= self.machine.team_size
            for block in range(self.machine.row_blocks)
        )
