"""Reads an emitted kernel as the device headers would, and runs it on lists of floats.

A second opinion on the emitter: nothing here knows of specs or plans, only of the vocabulary of
csrc/include/comfuse/program.hpp.  Every rule of that vocabulary that can be broken is an assertion.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from comfuse.generator.interpret import Matrix, Value
from comfuse.generator.ops import ELEMENTWISE, MONOIDS
from comfuse.generator.spec import DType

from .cpp_types import Kernel, Type, parse, within

__all__ = ["Kernel", "Type", "parse", "run", "run_between", "run_middle"]

FUNCTORS = {op.functor: op for op in ELEMENTWISE.values()}
MONOIDS_OF_CPP = {monoid.functor: monoid for monoid in MONOIDS.values()}
DTYPES = {dtype.value for dtype in DType} - {"bool"} | {"boolean"}
REDUCES = ("RowReduce", "GroupReduce", "ColReduce", "FullReduce")
TILE_STORES = ("TileStore", "StridedStore")
PER_ROW_STORES = ("ColumnStore", "GroupStore")
# In which order effects stand, and which may stand in a phase.
RANKS = {"Keep": 0} | dict.fromkeys(REDUCES, 1) | dict.fromkeys((*TILE_STORES, *PER_ROW_STORES, "Pass"), 2)


def run(
    kernel: Kernel, n: int, products: list[Matrix], operands: list[Value], scalars: list[float]
) -> dict[int, Value]:
    """Outputs by index.  ``operands`` in the order of the ABI, scalars apart."""
    for index, operand in enumerate(kernel.operands):
        assert operand.index() == index, "operands must stand in the order of the ABI"
    machine = _Machine(n, products, operands, scalars)
    for phase in kernel.phases:
        machine.run(phase)
    numbers = [r for phase in kernel.phases for r in _reductions(phase)]
    assert numbers == list(range(len(numbers))), "reductions are numbered in order of first evaluation"
    if "RowTail" in kernel.tails:
        machine.row_tail(kernel.tails["RowTail"])
    for name, store, axis in (("ColTail", "RowStore", "col"), ("FullTail", "ScalarStore", "full")):
        if name in kernel.tails:
            machine.tail(kernel.tails[name], store, axis)
    return machine.outputs


def run_middle(
    kernel: Kernel,
    h: int,
    products: list[Matrix],
    operands: list[Value],
    scalars: list[float],
    factor: Matrix,
) -> tuple[Matrix, list[Value]]:
    """What a chain's first link hands on, not rounded yet: a tile, and vectors for the second.

    The largest value so far is that of whole rows here.
    """
    assert kernel.middle is not None
    machine = _Machine(h, products, operands, scalars)
    phases = kernel.middle.arguments if kernel.middle.name == "Online" else (kernel.middle,)
    for number, phase in enumerate(phases):
        parts = {part.name: part.arguments for part in phase.arguments}
        assert list(parts) == ["Tiles", "Columns", "Lets", "Effects"]
        names = {e.name for e in parts["Effects"]} - {"RowReduce"}
        assert names == {"Pass"} if number == len(phases) - 1 else names <= {"Keep"}
        machine.run(phase)
    if kernel.middle.name == "Online":
        columns = parts["Columns"]
        assert not parts["Tiles"]
        assert [c.arguments[1].name for c in columns] == ["Stat"], "the largest so far, and no more"
        assert all(e.arguments[1].name == "Sum" for e in parts["Effects"] if e.name == "RowReduce")
    assert machine.passed is not None
    return machine.passed, [] if kernel.handed is None else machine.handed(kernel.handed, factor)


def run_between(
    kernel: Kernel, number: int, n: int, product: Matrix, operands: list[Value], scalars: list[float]
) -> Matrix:
    """What the phase behind a chain's second GEMM, or a further one, hands on, not rounded yet."""
    machine = _Machine(n, [product], operands, scalars)
    phase = kernel.further[number]
    parts = {part.name: part.arguments for part in phase.arguments}
    assert list(parts) == ["Tiles", "Columns", "Lets", "Effects"]
    assert [e.name for e in parts["Effects"]] == ["Pass"]
    machine.run(phase)
    assert machine.passed is not None
    return machine.passed


def _reductions(phase: Type) -> list[int]:
    effects = next(part for part in phase.arguments if part.name == "Effects")
    return [e.index() for e in effects.arguments if e.name in REDUCES]


@dataclass
class _Place:
    """Where an expression is evaluated, and what has been evaluated there."""

    m: int = 0
    n: int = 0
    columns: dict[Type, float] = field(default_factory=dict)
    groups: dict[tuple[Type, int], float] = field(default_factory=dict)
    lets: dict[Type, float] = field(default_factory=dict)


@dataclass
class _Uses:
    """What a phase has read."""

    tiles: set[Type] = field(default_factory=set)
    columns: set[Type] = field(default_factory=set)
    groups: set[Type] = field(default_factory=set)


class _Machine:
    def __init__(self, n: int, products: list[Matrix], operands: list[Value], scalars: list[float]) -> None:
        self.n, self.operands, self.scalars = n, operands, scalars
        self.products = [[list(row) for row in product] for product in products]
        self.rows = len(self.products[0])
        # Finished reductions: kind, monoid, columns of a group, a tuple of fields for each place.
        self.stats: dict[int, tuple[str, Type, int, list[tuple[float, ...]]]] = {}
        self.outputs: dict[int, Value] = {}
        self.kept = False
        self.passed: list[list[float]] | None = None  # on to the next link of a chain
        self.uses = _Uses()

    # --- phases ---

    def run(self, phase: Type) -> None:
        parts = {part.name: part.arguments for part in phase.arguments}
        assert list(parts) in (
            ["Tiles", "Columns", "Lets", "Effects"],
            ["Tiles", "Columns", "Lets", "Effects", "Groups"],
        )
        columns, groups, effects = parts["Columns"], parts.get("Groups", ()), parts["Effects"]
        for values in (columns, groups):
            assert [c.index() for c in values] == list(range(len(values)))
        self._check_effects(effects)
        self.uses = _Uses()
        values = {e: [[0.0] * self.n for _ in range(self.rows)] for e in effects}
        for m in range(self.rows):
            place = self._row_place(m, columns, groups)
            for n in range(self.n):
                place.n, place.lets = n, {}
                for let in parts["Lets"]:
                    place.lets[let] = self._element(let, place, top=True)
                for e in effects:
                    if e.name not in PER_ROW_STORES:
                        values[e][m][n] = self._element(e.arguments[-1], place)
            self._store_per_row(place, effects)
        new = {e.index(): self._reduced(e, values[e]) for e in effects if e.name in REDUCES}
        assert not new.keys() & self.stats.keys()
        self.stats |= new
        for e in effects:
            if e.name in TILE_STORES:
                self._store(e, values[e])
            elif e.name == "Keep":
                self.products[0], self.kept = values[e], True
            elif e.name == "Pass":
                self.passed = values[e]
        self._check_uses(parts["Tiles"], columns, groups)

    def _row_place(self, m: int, columns: tuple[Type, ...], groups: tuple[Type, ...]) -> _Place:
        place = _Place(m)
        for column in columns:  # in order: a column sees the earlier ones
            place.columns[column] = self._row(column.arguments[1], place)
        for group in groups:
            for g in range(self._group_count()):
                place.groups[group, g] = self._group(group.arguments[1], place, g)
        return place

    def _group_count(self) -> int:
        return next(self.n // size for kind, _, size, _ in self.stats.values() if kind == "GroupReduce")

    def _store_per_row(self, place: _Place, effects: tuple[Type, ...]) -> None:
        for e in effects:
            if e.name == "ColumnStore":
                assert e.arguments[2] in place.columns
                self.uses.columns.add(e.arguments[2])
                self._append(e, place.m, place.columns[e.arguments[2]])
            elif e.name == "GroupStore":
                self.uses.groups.add(e.arguments[2])
                row = [place.groups[e.arguments[2], g] for g in range(self._group_count())]
                self._append(e, place.m, row)

    def _append(self, e: Type, m: int, value: Value) -> None:
        if m == 0:
            self._store(e, [])
        self.outputs[e.index()].append(value)

    def _reduced(self, e: Type, rows: Matrix) -> tuple[str, Type, int, list[tuple[float, ...]]]:
        evaluate = MONOIDS_OF_CPP[e.arguments[1].name].evaluate
        size = int(e.arguments[2].name) if e.name == "GroupReduce" else self.n
        if e.name in ("RowReduce", "GroupReduce"):
            assert self.n % size == 0
            parts = [row[g : g + size] for row in rows for g in range(0, self.n, size)]
        elif e.name == "ColReduce":
            parts = [[row[n] for row in rows] for n in range(self.n)]
        else:
            parts = [[x for row in rows for x in row]]
        return e.name, e.arguments[1], size, [evaluate(part) for part in parts]

    def _check_effects(self, effects: tuple[Type, ...]) -> None:
        ranks = [RANKS[e.name] for e in effects]
        assert ranks == sorted(ranks), "Keep, then reductions, then stores"
        assert ranks.count(0) <= 1

    def _check_uses(
        self, tiles: tuple[Type, ...], columns: tuple[Type, ...], groups: tuple[Type, ...]
    ) -> None:
        assert self.uses.tiles == set(tiles), "Tiles must be what the phase reads"
        assert len(tiles) == len(set(tiles))
        inner = {c for value in (*columns, *groups) for c in within(value.arguments[1], "Column")}
        assert self.uses.columns | inner == set(columns), "Columns must be what the phase reads"
        inner = {g for value in groups for g in within(value.arguments[1], "Group")}
        assert self.uses.groups | inner == set(groups), "Groups must be what the phase reads"

    # --- tails ---

    def row_tail(self, tail: Type) -> None:
        columns, effects = (part.arguments for part in tail.arguments)
        assert [c.index() for c in columns] == list(range(len(columns)))
        assert effects
        assert {e.name for e in effects} == {"ColumnStore"}
        self.uses = _Uses()
        for m in range(self.rows):
            self._store_per_row(self._row_place(m, columns, ()), effects)
        self._check_uses((), columns, ())

    def handed(self, handed: Type, factor: Matrix) -> list[Value]:
        """Vectors for the second link, whose numbers follow those of the operands."""
        columns, effects = (part.arguments for part in handed.arguments)
        assert [c.index() for c in columns] == list(range(len(columns)))
        self.uses = _Uses()
        places = [self._row_place(m, columns, ()) for m in range(self.rows)]
        values: list[Value] = []
        for number, e in enumerate(effects):
            vector, x = e.arguments
            assert vector.index() == len(self.operands) + number
            if e.name == "HandRow":
                assert vector.name == "ColumnVector"
                values.append([self._row(x, place) for place in places])
                self.uses.columns |= {x} & set(columns)
            else:
                assert (e.name, vector.name) == ("HandFold", "RowVector")
                c = [self._late(x, "col", h) for h in range(self.n)]
                values.append([sum(a * b for a, b in zip(c, row, strict=True)) for row in factor])
        self._check_uses((), columns, ())
        return values

    def tail(self, tail: Type, store: str, axis: str) -> None:
        (effects,) = (part.arguments for part in tail.arguments)
        assert effects
        for e in effects:
            assert e.name == store
            count = self.n if axis == "col" else 1
            values = [self._late(e.arguments[2], axis, n) for n in range(count)]
            self._store(e, values if axis == "col" else values[0])

    def _late(self, x: Type, axis: str, n: int) -> float:
        """An expression of a ColTail or a FullTail."""
        if axis == "col" and x.name == "ColStat":
            return self._stat(x, "ColReduce", n)
        if axis == "col" and x.name == "RowVector":
            return self.operands[x.index()][n]
        if axis == "col" and x.name == "ColumnIndex":
            return float(n)
        if axis == "full" and x.name == "FullStat":
            return self._stat(x, "FullReduce", 0)
        if x.name in ("Scalar", "Imm", "RowCount"):
            return self._uniform(x)
        assert x.name in FUNCTORS, f"{x.name} cannot stand in a tail's expression"
        return FUNCTORS[x.name].evaluate(*(self._late(a, axis, n) for a in x.arguments))

    def _store(self, effect: Type, value: Value) -> None:
        assert effect.index() not in self.outputs
        assert effect.arguments[1].name in DTYPES
        self.outputs[effect.index()] = value

    # --- expressions ---

    def _element(self, x: Type, place: _Place, top: bool = False) -> float:
        """An expression at one element."""
        if x in place.lets and not top:
            return place.lets[x]
        if x.name in ("Acc", "Kept", "Product"):
            product = x.index() if x.arguments else 0
            assert product > 0 or (x.name == "Kept") == self.kept
            return self.products[product][place.m][place.n]
        if x.name in ("Tile", "StridedTile"):
            self.uses.tiles |= {x} if x.name == "Tile" else set()
            return self.operands[x.index()][place.m][place.n]
        if x.name == "RowVector":
            return self.operands[x.index()][place.n]
        if x.name == "Vector":
            return self._late(x.arguments[0], "col", place.n)
        if x.name == "Column":
            self.uses.columns.add(x)
            return place.columns[x]
        if x.name == "Group":
            self.uses.groups.add(x)
            return place.groups[x, place.n * self._group_count() // self.n]
        if x.name == "ColStat":
            assert x.index() in self.stats, "phases read the column reductions of earlier ones"
            return self._stat(x, "ColReduce", place.n)
        if x.name in ("RowIndex", "ColumnIndex"):
            return float(place.m if x.name == "RowIndex" else place.n)
        if x.name in ("Scalar", "Imm", "RowCount"):
            return self._uniform(x)
        assert x.name in FUNCTORS, f"{x.name} cannot stand in an element's expression"
        return FUNCTORS[x.name].evaluate(*(self._element(a, place) for a in x.arguments))

    def _row(self, x: Type, place: _Place) -> float:
        """An expression of a Column."""
        if x.name == "Column":
            return place.columns[x]
        if x.name == "ColumnVector":
            return self.operands[x.index()][place.m]
        if x.name == "Stat":
            return self._stat(x, "RowReduce", place.m)
        if x.name == "RowIndex":
            return float(place.m)
        if x.name in ("Scalar", "Imm", "RowCount"):
            return self._uniform(x)
        assert x.name in FUNCTORS, f"{x.name} cannot stand in a row's expression"
        return FUNCTORS[x.name].evaluate(*(self._row(a, place) for a in x.arguments))

    def _group(self, x: Type, place: _Place, g: int) -> float:
        """An expression of a Group."""
        if x.name == "Group":
            return place.groups[x, g]
        if x.name == "GroupStat":
            return self._stat(x, "GroupReduce", place.m * self._group_count() + g)
        if x.name in ("Column", "ColumnVector", "Scalar", "Imm", "RowIndex", "RowCount"):
            return self._row(x, place)
        assert x.name in FUNCTORS, f"{x.name} cannot stand in a group's expression"
        return FUNCTORS[x.name].evaluate(*(self._group(a, place, g) for a in x.arguments))

    def _stat(self, x: Type, kind: str, at: int) -> float:
        reduce, monoid, _, results = self.stats[x.index()]
        assert reduce == kind
        fields = list(MONOIDS_OF_CPP[monoid.name].fields.values())
        return results[at][fields.index(x.arguments[1].name)]

    def _uniform(self, x: Type) -> float:
        if x.name == "RowCount":
            return float(self.rows)
        if x.name == "Scalar":
            return self.scalars[x.index()]
        return struct.unpack("<f", struct.pack("<I", int(x.arguments[0].name, 16)))[0]
