"""Reads an emitted kernel as the device headers would, and runs it on lists of floats.

A second opinion on the emitter: nothing here knows of specs or plans, only of the vocabulary of
csrc/include/comfuse/program.hpp.  Every rule of that vocabulary that can be broken is an assertion.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from comfuse.generator.interpret import Value
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS

FUNCTORS = {op.functor: op for op in ELEMENTWISE.values()}
MONOIDS = {op.monoid: op for op in REDUCTIONS.values()}
LEAVES = ("Acc", "Kept", "Tile", "RowVector", "ColumnVector", "Scalar", "Imm", "Stat")


@dataclass(frozen=True)
class Type:
    """``cf::name<arguments>``; aliases are resolved when they are read."""

    name: str
    arguments: tuple[Type, ...] = ()

    def index(self) -> int:
        return int(self.arguments[0].name)


@dataclass
class Kernel:
    aliases: dict[str, Type]
    phases: list[Type]
    operands: list[Type]
    constants: dict[str, list[int]] = field(default_factory=dict)  # Pingpong, Cluster, Stages, ...


def parse(text: str) -> Kernel:
    """The aliases of a kernel, each resolved as it stands."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text)
    code = code[code.index("namespace {") :]
    aliases: dict[str, Type] = {}
    for name, definition in re.findall(r"using (\w+) = ?\s*([^;]*);", code):
        assert name not in aliases, f"{name} is declared twice"
        aliases[name] = _Parser(definition, aliases).parse()
    kernel = aliases["Kernel"]
    assert kernel.name == "FusedGemm"
    parts = {part.name: part for part in kernel.arguments}
    numbers = {
        name: [int(a.name) for a in part.arguments if a.name.isdigit()] for name, part in parts.items()
    }
    return Kernel(aliases, list(parts["Program"].arguments), list(parts["Operands"].arguments), numbers)


class _Parser:
    def __init__(self, text: str, aliases: dict[str, Type]) -> None:
        self.tokens = re.findall(r"[\w:]+|[<>,]", text)
        self.aliases = aliases
        self.position = 0

    def parse(self) -> Type:
        result = self._type()
        assert self.position == len(self.tokens), self.tokens
        return result

    def _type(self) -> Type:
        token = self._next()
        if not token.startswith("cf::"):
            if re.fullmatch(r"0x[0-9a-f]{8}|\d+", token):
                return Type(token)
            assert token in self.aliases, f"{token} is used before it is declared"
            return self.aliases[token]
        name = token.removeprefix("cf::").removeprefix("sm90::")
        arguments: list[Type] = []
        if self._peek() == "<":
            self._next()
            while self._peek() != ">":
                arguments.append(self._type())
                if self._peek() == ",":
                    self._next()
            self._next()
        return Type(name, tuple(arguments))

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _next(self) -> str:
        self.position += 1
        return self.tokens[self.position - 1]


def run(
    kernel: Kernel, n: int, gemm: list[list[float]], operands: list[Value], scalars: list[float]
) -> dict[int, Value]:
    """Outputs by index.  ``operands`` in the order of the ABI, scalars apart."""
    for index, operand in enumerate(kernel.operands):
        assert operand.index() == index, "operands must stand in the order of the ABI"
    machine = _Machine(n, [list(row) for row in gemm], operands, scalars)
    for phase in kernel.phases:
        machine.run(phase)
    return machine.outputs


class _Machine:
    def __init__(self, n: int, acc: list[list[float]], operands: list[Value], scalars: list[float]) -> None:
        self.n, self.acc, self.operands, self.scalars = n, acc, operands, scalars
        self.stats: dict[int, tuple[Type, list[tuple[float, ...]]]] = {}
        self.outputs: dict[int, Value] = {}
        self.kept = False

    def run(self, phase: Type) -> None:
        assert [part.name for part in phase.arguments] == ["Tiles", "Columns", "Lets", "Effects"]
        tiles, columns, lets, effects = (part.arguments for part in phase.arguments)
        assert [c.index() for c in columns] == list(range(len(columns)))
        self._check_effects(effects)
        used_tiles: set[Type] = set()
        used_columns: set[Type] = set()
        acc = [[0.0] * self.n for _ in self.acc]
        new_stats: dict[int, tuple[Type, list[tuple[float, ...]]]] = {}
        arguments: dict[Type, list[list[float]]] = {e: [] for e in effects}
        for m in range(len(self.acc)):
            per_row: dict[Type, float] = {}
            for column in columns:  # in order: a column sees the earlier ones
                per_row[column] = self._row(column.arguments[1], m, per_row)
            for e in effects:
                if e.name == "ColumnStore":
                    assert e.arguments[2] in columns
                    used_columns.add(e.arguments[2])
                    arguments[e].append([self._row(e.arguments[2], m, per_row)])
                elif e.name != "Keep":
                    arguments[e].append([])
            for n in range(self.n):
                bound: dict[Type, float] = {}
                environment = (m, n, per_row, bound, used_tiles, used_columns)
                for let in lets:
                    bound[let] = self._element(let, *environment, top=True)
                for e in effects:
                    if e.name == "ColumnStore":
                        continue
                    x = self._element(e.arguments[-1], *environment)
                    if e.name == "Keep":
                        acc[m][n] = x
                    else:
                        arguments[e][m].append(x)
        for e in effects:
            if e.name == "RowReduce":
                rows = [MONOIDS[e.arguments[1].name].evaluate(row) for row in arguments[e]]
                assert e.index() not in self.stats | new_stats
                new_stats[e.index()] = (e.arguments[1], rows)
            elif e.name == "TileStore":
                self._store(e, arguments[e])
            elif e.name == "ColumnStore":
                self._store(e, [row[0] for row in arguments[e]])
        self.stats |= new_stats
        if any(e.name == "Keep" for e in effects):
            self.acc, self.kept = acc, True
        assert used_tiles == set(tiles), "Tiles must be what the phase reads"
        assert len(tiles) == len(set(tiles))
        read_by_columns = {c for column in columns for c in _columns_in(column.arguments[1])}
        assert used_columns | read_by_columns == set(columns), "Columns must be what the phase reads"

    def _check_effects(self, effects: tuple[Type, ...]) -> None:
        order = {"Keep": 0, "RowReduce": 1, "TileStore": 2, "ColumnStore": 2}
        ranks = [order[e.name] for e in effects]
        assert ranks == sorted(ranks), "Keep, then reductions, then stores"
        assert ranks.count(0) <= 1
        assert effects, "a phase must do something"

    def _store(self, effect: Type, value: Value) -> None:
        assert effect.index() not in self.outputs
        assert effect.arguments[1].name in ("bf16", "fp16", "fp32")
        self.outputs[effect.index()] = value

    def _element(
        self,
        x: Type,
        m: int,
        n: int,
        per_row: dict[Type, float],
        bound: dict[Type, float],
        used_tiles: set[Type],
        used_columns: set[Type],
        top: bool = False,
    ) -> float:
        """An expression at one element."""
        if x in bound and not top:
            return bound[x]
        if x.name in ("Acc", "Kept"):
            assert (x.name == "Kept") == self.kept
            return self.acc[m][n]
        if x.name == "Tile":
            used_tiles.add(x)
            return self.operands[x.index()][m][n]
        if x.name == "RowVector":
            return self.operands[x.index()][n]
        if x.name == "Column":
            used_columns.add(x)
            return per_row[x]
        if x.name in ("Scalar", "Imm"):
            return self._uniform(x)
        assert x.name in FUNCTORS, f"{x.name} cannot stand in an element's expression"
        environment = (m, n, per_row, bound, used_tiles, used_columns)
        return FUNCTORS[x.name].evaluate(*(self._element(a, *environment) for a in x.arguments))

    def _row(self, x: Type, m: int, per_row: dict[Type, float]) -> float:
        """An expression of a Column."""
        if x.name == "Column":
            return per_row[x]
        if x.name == "ColumnVector":
            return self.operands[x.index()][m]
        if x.name == "Stat":
            monoid, rows = self.stats[x.index()]
            fields = list(MONOIDS[monoid.name].fields.values())
            return rows[m][fields.index(x.arguments[1].name)]
        if x.name in ("Scalar", "Imm"):
            return self._uniform(x)
        assert x.name in FUNCTORS, f"{x.name} cannot stand in a row's expression"
        return FUNCTORS[x.name].evaluate(*(self._row(a, m, per_row) for a in x.arguments))

    def _uniform(self, x: Type) -> float:
        if x.name == "Scalar":
            return self.scalars[x.index()]
        return struct.unpack("<f", struct.pack("<I", int(x.arguments[0].name, 16)))[0]


def _columns_in(x: Type) -> set[Type]:
    if x.name == "Column":
        return {x}
    return {c for a in x.arguments for c in _columns_in(a)}
