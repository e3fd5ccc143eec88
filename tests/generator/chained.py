"""A simulation of a chain's kernel, for the question whether it can deadlock.

As of :mod:`tests.generator.persistent`: it knows what the device code does in which order
(csrc/include/comfuse/sm90/chain_kernel.hpp, chain_mainloop.hpp), and nothing of time.  Agents of a CTA are
the producer of weights, for each warpgroup a producer of its rows of X and of its tile operands, and the
warpgroups.  Each is a generator that yields what it waits for; nothing that one waits for is ever taken away
again, so the order in which they move does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Wait = Callable[[], bool]


@dataclass(frozen=True)
class ChainMachine:
    """A launch, as one CTA sees it."""

    tiles: int
    warpgroups: int
    buffers: int
    blocks: int  # of H
    rows_in_registers: bool
    first_stays: bool  # weights of the first link
    later_stay: bool
    ring: int
    row_stages: int = 1
    slots: int = 1  # of each warpgroup's ring of tile operands
    middle_pieces: int = 0  # of tile operands, that the middle reads for each block
    further: tuple[int, ...] = ()  # blocks of each GEMM behind the second
    further_pieces: tuple[int, ...] = ()  # that the program ahead of each reads for each tile
    outer_pieces: int = 0  # that the last link's program reads for each tile
    holds_tile: bool = False  # these at once, until all is stored: the slots hold whole tiles
    from_rows: bool = False  # instead of pieces, from the tile's rows, which stay until then too
    tiles_of_batch: int | None = None  # of a batched chain: a round's tiles are of one batch

    @property
    def pieces(self) -> int:
        """For each tile."""
        return self.blocks * self.middle_pieces + sum(self.further_pieces) + self.outer_pieces

    @property
    def rounds(self) -> int:
        if self.tiles_of_batch is None:
            return -(-self.tiles // self.warpgroups)
        return self.tiles // self.tiles_of_batch * self._rounds_of_batch(self.tiles_of_batch)

    def has_tile(self, round_: int, warpgroup: int) -> bool:
        if self.tiles_of_batch is None:
            return round_ * self.warpgroups + warpgroup < self.tiles
        of_batch = round_ % self._rounds_of_batch(self.tiles_of_batch)
        return of_batch * self.warpgroups + warpgroup < self.tiles_of_batch

    def tiles_of(self, warpgroup: int) -> int:
        return sum(self.has_tile(round_, warpgroup) for round_ in range(self.rounds))

    def _rounds_of_batch(self, tiles: int) -> int:
        return -(-tiles // self.warpgroups)


@dataclass
class _Own:
    """What has happened to a warpgroup's rings, ever."""

    rows_loaded: int = 0
    rows_freed: int = 0
    pieces_loaded: int = 0
    pieces_freed: int = 0
    weights_taken: int = 0
    weights_freed: int = 0
    freed: list[str] = field(default_factory=list)  # names of weights, in order


class ChainSimulation:
    def __init__(self, machine: ChainMachine) -> None:
        self.machine = machine
        self.own = [_Own() for _ in range(machine.warpgroups)]
        self.passed: list[str] = []  # names of the weights that have gone into the ring

    def run(self) -> bool:
        """True if every agent finishes."""
        m = self.machine
        agents = [self._load_weights()]
        agents += [self._load(w) for w in range(m.warpgroups)]
        agents += [self._consume(w) for w in range(m.warpgroups)]
        waits: list[Wait | None] = [next(agent, None) for agent in agents]
        while any(waits):
            moved = False
            for i, wait in enumerate(waits):
                if wait is not None and wait():
                    waits[i] = next(agents[i], None)
                    moved = True
            if not moved:
                return False
        for own in self.own:
            assert own.freed == self.passed, "weights are freed in another order than they came"
        return True

    # --- producers ---

    def _load_weights(self) -> Iterator[Wait]:
        """Those that stay are loaded at the start: nobody waits for more than that."""
        m = self.machine
        for tile in range(m.rounds):
            names = [f"first {b}" for b in range(min(m.buffers, m.blocks))]
            for block in range(m.blocks):
                names.append(f"second {block}")
                if block + m.buffers < m.blocks:
                    names.append(f"first {block + m.buffers}")
            names += [f"{number} {b}" for number, blocks in enumerate(m.further) for b in range(blocks)]
            for name in names:
                if m.first_stays if name.startswith("first") else m.later_stay:
                    continue
                yield lambda: all(len(self.passed) - own.weights_freed < m.ring for own in self.own)
                self.passed.append(f"{tile}: {name}")

    def _load(self, w: int) -> Iterator[Wait]:
        m, own = self.machine, self.own[w]
        count = m.tiles_of(w)
        for tile in range(count):
            while own.rows_loaded < min(tile + m.row_stages, count):
                yield lambda: own.rows_loaded - own.rows_freed < m.row_stages
                own.rows_loaded += 1
            for _ in range(0 if m.from_rows else m.pieces):
                yield lambda: own.pieces_loaded - own.pieces_freed < m.slots
                own.pieces_loaded += 1

    # --- a warpgroup ---

    def _consume(self, w: int) -> Iterator[Wait]:
        m, own = self.machine, self.own[w]
        for tile in range(m.rounds):
            if not m.has_tile(tile, w):
                yield from self._skip(own, tile)
                continue
            yield lambda: own.rows_loaded > own.rows_freed
            own.rows_freed += m.rows_in_registers and not m.from_rows
            yield from self._take(own, m.first_stays)
            self._finish_first(own, tile, 0)
            for block in range(m.blocks):
                if block > 0:
                    yield from self._take(own, m.later_stay)
                ahead = block + m.buffers - 1  # the block whose first GEMM runs in this step
                if 0 < ahead < m.blocks:
                    yield from self._take(own, m.first_stays)
                if m.buffers == 2:
                    yield from self._read(own, m.middle_pieces)
                if block > 0:
                    self._free(own, f"{tile}: second {block - 1}", m.later_stay)
                if 0 < ahead < m.blocks:
                    self._finish_first(own, tile, ahead)
                if m.buffers == 1:
                    yield from self._read(own, m.middle_pieces)
            yield from self._take(own, m.later_stay)
            self._free(own, f"{tile}: second {m.blocks - 1}", m.later_stay)
            for number, blocks in enumerate(m.further):
                yield from self._read(own, m.further_pieces[number] if m.further_pieces else 0)
                for block in range(blocks):
                    yield from self._take(own, m.later_stay)
                    self._free(own, f"{tile}: {number} {block}", m.later_stay)
            if not m.holds_tile:
                yield from self._read(own, m.outer_pieces)
            elif not m.from_rows:
                yield lambda: own.pieces_loaded - own.pieces_freed >= m.outer_pieces
                own.pieces_freed += m.outer_pieces
            own.rows_freed += m.from_rows

    def _finish_first(self, own: _Own, tile: int, block: int) -> None:
        m = self.machine
        self._free(own, f"{tile}: first {block}", m.first_stays)
        own.rows_freed += not m.rows_in_registers and not m.from_rows and block == m.blocks - 1

    def _skip(self, own: _Own, tile: int) -> Iterator[Wait]:
        """A round in which the others have a tile, whose weights wait for this warpgroup too."""
        m = self.machine
        passing = m.blocks * (not m.first_stays) + (m.blocks + sum(m.further)) * (not m.later_stay)
        for _ in range(passing):
            yield from self._take(own, False)
            self._free(own, self.passed[own.weights_freed], False)

    def _take(self, own: _Own, stays: bool) -> Iterator[Wait]:
        if not stays:
            yield lambda: len(self.passed) > own.weights_taken
            own.weights_taken += 1

    def _free(self, own: _Own, name: str, stays: bool) -> None:
        if not stays:
            own.weights_freed += 1
            own.freed.append(name)

    def _read(self, own: _Own, pieces: int) -> Iterator[Wait]:
        for _ in range(pieces):
            yield lambda: own.pieces_loaded > own.pieces_freed
            own.pieces_freed += 1
