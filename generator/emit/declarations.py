"""A phase program as C++ type aliases."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from comfuse.generator.deferral import Deferred
from comfuse.generator.emit import layout
from comfuse.generator.emit.expressions import Writer
from comfuse.generator.emit.names import Namer
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.phases import Phase, PhaseProgram, RowTail, axis, moves_rows
from comfuse.generator.plan.chain import vectors
from comfuse.generator.spec import DType, FusedSpec, Operand, Space

_TAILS = {
    "RowTail": "the last tile of each row block",
    "ColTail": "the last tile of each block of columns",
    "FullTail": "the last tile of all",
}
_REDUCES = {"row": "RowReduce", "group": "GroupReduce", "col": "ColReduce", "full": "FullReduce"}
_VECTOR_STORES = {
    Space.COLUMN: "ColumnStore",
    Space.GROUP: "GroupStore",
    Space.ROW: "RowStore",
    Space.SCALAR: "ScalarStore",
}


@dataclass(frozen=True)
class Section:
    """The alias lines of a phase or a tail; the last declares ``name``."""

    title: str
    name: str
    lines: list[str]


@dataclass
class Declarations:
    """The alias lines of a kernel, by section, ready for the template."""

    operands: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=list)  # of a chain: computed once; the last line lists them
    middle: list[Section] = field(default_factory=list)  # of a chain: what comes before the program
    program: list[Section] = field(default_factory=list)
    tensor_operands: list[str] = field(default_factory=list)  # names, in the order of the ABI
    last_operands: list[str] = field(default_factory=list)  # of a chain: names, of its last link


def declare(program: PhaseProgram) -> Declarations:
    """All aliases that the program of a kernel of one GEMM needs."""
    only = _Sections(program, Namer())
    result = Declarations()
    only.declare_operands(result)
    result.program = only.sections("")
    return _with_constants(result, only)


def middle_names(further: int) -> list[str]:
    """Of the programs between the second GEMM and each further one."""
    return [f"Middle{number}" for number in range(1, 1 + further)]


def declare_chain(
    program: PhaseProgram, middle: PhaseProgram, further: tuple[PhaseProgram, ...], deferred: Deferred
) -> Declarations:
    """All aliases that a chain's kernel needs.

    Operands are numbered through: first those of the middle, then those of the programs behind it.  What
    the middle hands on beside its tile, values a row and then ``deferred.vectors`` of its columns times the
    second factor, has the numbers behind them.
    """
    namer = Namer()
    first, *between = (
        _Sections(part, namer, vectors.of_middle(deferred, number), passes_on=True)
        for number, part in enumerate((middle, *further))
    )
    last = _Sections(program, namer, vectors.of_program(deferred))
    result = Declarations()
    handed = len(middle.spec.outputs) - 1 + len(deferred.vectors)
    for link in (first, *between):
        link.declare_operands(result)
    last.declare_operands(result, handed)
    computed = []
    for link in (first, *between, last):
        computed += link.writer.declare_vectors()
        result.vectors += link.writer.lines
    result.vectors += layout.declaration("Vectors", "cf::Vectors", computed)
    names = result.last_operands = last.writer.operand_names
    result.middle = first.middle(names[len(names) - handed :], deferred.vectors)
    for number, (name, link) in enumerate(zip(middle_names(len(between)), between, strict=True), 1):
        title = f"link {number}: over (M, H{number}), and on as A of link {number + 1}"
        result.middle.append(link.between(title, name))
    result.program = last.sections(f"link {1 + len(between)}, ")
    return _with_constants(result, first, *between, last)


def _with_constants(result: Declarations, *links: _Sections) -> Declarations:
    result.constants = layout.with_comments(
        [
            (f"using {name} = cf::Imm<{_bits(value):#010x}>;", repr(value))
            for link in links
            for name, value in link.writer.constants()
        ]
    )
    return result


class _Sections:
    """One link's.  One that passes its output on to the next link does so where others store."""

    def __init__(
        self, program: PhaseProgram, namer: Namer, computed: tuple[int, ...] = (), passes_on: bool = False
    ) -> None:
        self.program = program
        self.passes_on = passes_on
        self.spec: FusedSpec = program.spec
        self.writer = Writer(program, namer, computed)
        tail = program.row_tail.columns if program.row_tail else ()
        # Values that are read by their plain names.
        self.named = {*tail, *(i for phase in program.phases for i in (*phase.columns, *phase.groups))}

    def sections(self, prefix: str) -> list[Section]:
        """Phases and tails; ``prefix`` begins the titles of the phases."""
        result = [
            self._phase(f"{prefix}phase {number}", f"Phase{number}", phase, str(number))
            for number, phase in enumerate(self.program.phases)
        ]
        if self.program.row_tail is not None:
            result.append(self._row_tail(self.program.row_tail))
        for name, stores in (("ColTail", self.program.column_stores), ("FullTail", self.program.full_stores)):
            if stores:
                result.append(self._tail(name, stores))
        return result

    def middle(self, handed: list[str], folded: tuple[int, ...]) -> list[Section]:
        """Of a chain's first link: its one phase or both, and what it hands on beside its tile."""
        title = "link 0: over (M, H), and on as A of link 1"
        *before, last = self.program.phases
        if not before:
            sections = [self._phase(title, "Middle", last, "OfMiddle")]
        else:
            (first,) = before
            values = self._phase("link 0: over (M, H)", "Values", first, "OfValues")
            last_values = self._phase(title, "Exponentials", last, "OfExponentials")
            last_values.lines.append("using Middle = cf::Online<Values, Exponentials>;")
            sections = [values, last_values]
        return [*sections, self._handed(handed, folded)] if handed else sections

    def between(self, title: str, alias: str) -> Section:
        """Of a chain's link between the first and the last: its one phase."""
        (phase,) = self.program.phases
        return self._phase(title, alias, phase, f"Of{alias}")

    def _handed(self, names: list[str], folded: tuple[int, ...]) -> Section:
        """``names`` are the second link's: of values a row, then of vectors."""
        tail = self.program.row_tail or RowTail((), ())
        self.writer.enter(None)
        columns = [self._once_a_row("Column", n, i, tail.stores) for n, i in enumerate(tail.columns)]
        nodes = [self.spec.outputs[o].node for o in tail.stores]
        kinds = ["HandRow"] * len(nodes) + ["HandFold"] * len(folded)
        effects = [
            f"cf::{kind}<{name}, {self.writer.text(i)}>"
            for kind, name, i in zip(kinds, names, (*nodes, *folded), strict=True)
        ]
        lists = [
            self._list(kind, f"Handed{kind}", items, "Handed")
            for kind, items in (("Columns", columns), ("Effects", effects))
        ]
        self.writer.lines += layout.declaration("Handed", "cf::Handed", lists)
        return Section("link 0: behind its last columns, and on to link 1", "Handed", self.writer.lines)

    def declare_operands(self, result: Declarations, handed: int = 0) -> None:
        """Of the last ``handed`` only their names and numbers: a launch has no such operands."""
        own = len(self.spec.operands) - handed
        self._declare(result, self.spec.operands[:own], self.writer.operand_names[:own])
        tensors = list(result.tensor_operands)
        self._declare(result, self.spec.operands[own:], self.writer.operand_names[own:])
        result.tensor_operands = tensors

    def _declare(self, result: Declarations, operands: Sequence[Operand], names: list[str]) -> None:
        scalars = len(result.operands) - len(result.tensor_operands)
        for operand, name in zip(operands, names, strict=True):
            if operand.space is Space.SCALAR:
                type_ = f"cf::Scalar<{scalars}>"
                scalars += 1
            else:
                type_ = self._tensor_type(operand, len(result.tensor_operands))
                result.tensor_operands.append(name)
            result.operands.append(f"using {name} = {type_};")

    def _tensor_type(self, operand: Operand, index: int) -> str:
        kind = {Space.TILE: "Tile", Space.ROW: "RowVector", Space.COLUMN: "ColumnVector"}[operand.space]
        if operand.space is Space.TILE and not moves_rows(self.spec, operand):
            kind = "StridedTile"
        return f"cf::{kind}<{index}, {_element(operand.dtype)}>"

    # --- phases and tails ---

    def _phase(self, title: str, alias: str, phase: Phase, suffix: str) -> Section:
        """A phase as ``alias``; its lists, where they have names of their own, end in ``suffix``."""
        writer = self.writer
        writer.enter(phase.content)
        columns = [self._once_a_row("Column", n, i, phase.stores) for n, i in enumerate(phase.columns)]
        groups = [self._once_a_row("Group", n, i, phase.stores) for n, i in enumerate(phase.groups)]
        lets = [i for i in phase.lets if not writer.is_in_vectors(i)]
        for i in lets:
            if self.spec.nodes[i].op in ELEMENTWISE:
                writer.alias(i, self.spec.nodes[i].name)
        effects = self._effects(phase)
        tiles = [o for o in phase.tiles if moves_rows(self.spec, self.spec.operands[o])]
        parts = {
            "Tiles": [writer.operand_names[o] for o in tiles],
            "Columns": columns,
            "Lets": [writer.text(i) for i in lets],
            "Effects": effects,
        }
        if groups:
            parts["Groups"] = groups
        lists = [self._list(name, f"{name}{suffix}", items, "Phase") for name, items in parts.items()]
        writer.lines += layout.declaration(alias, "cf::Phase", lists)
        return Section(title, alias, writer.lines)

    def _row_tail(self, tail: RowTail) -> Section:
        self.writer.enter(None)
        columns = [self._once_a_row("Column", n, i, tail.stores) for n, i in enumerate(tail.columns)]
        return self._tail("RowTail", tail.stores, columns)

    def _tail(self, name: str, stores: tuple[int, ...], columns: list[str] | None = None) -> Section:
        writer = self.writer
        if columns is None:
            writer.enter(None)
        effects = [self._store(o) for o in stores]
        lists = [] if columns is None else [self._list("Columns", f"{name}Columns", columns, name)]
        lists.append(self._list("Effects", f"{name}Effects", effects, name))
        writer.lines += layout.declaration(name, f"cf::{name}", lists)
        who = _TAILS[name]
        if name == "ColTail" and self.program.columns_wait:
            who = "the first tile of each block of columns"
        return Section(f"by {who}", name, writer.lines)

    def _list(self, template: str, alias: str, items: list[str], parent: str) -> str:
        """A list of types, under a name of its own if it is long."""
        text = f"cf::{template}<{', '.join(items)}>"
        if layout.fits_an_argument(text, f"cf::{parent}"):
            return text
        self.writer.lines += layout.declaration(alias, f"cf::{template}", items)
        return alias

    def _once_a_row(self, kind: str, index: int, i: int, stores: tuple[int, ...]) -> str:
        """A value a row, or a row and group, as the phase's ``index``-th of them."""
        node = self.spec.nodes[i]
        name = f"{node.name}_column" if node.op in ("load", "row_index") else node.name
        name = next((self.spec.outputs[o].name for o in stores if self.spec.outputs[o].node == i), name)
        return self.writer.alias(i, name, f"cf::{kind}<{index}, ", ">")

    # --- effects ---

    def _effects(self, phase: Phase) -> list[str]:
        effects = []
        if phase.keep is not None:
            self.writer.alias(phase.keep, self.spec.nodes[phase.keep].name)
            effects.append(f"cf::Keep<{self.writer.text(phase.keep)}>")
        effects += [self._reduction(r) for r in phase.reductions]
        effects += [self._store(o) for o in phase.stores]
        return effects

    def _reduction(self, r: int) -> str:
        node, over = self.spec.nodes[r], axis(self.spec, r)
        assert over is not None
        arguments = [str(self.writer.reduction_index[r]), f"cf::{REDUCTIONS[node.op].monoid.functor}"]
        if over == "group":
            arguments.append(str(self.spec.group))
        head = f"cf::{_REDUCES[over]}<{', '.join(arguments)}, "
        # The plain name is for the value that later phases read.
        name = self.writer.unique(f"reduce_{node.name}" if r in self.named else node.name)
        self.writer.declare(name, node.inputs[0], head, ">")
        return name

    def _store(self, o: int) -> str:
        output = self.spec.outputs[o]
        if self.spec.nodes[output.node].op in ELEMENTWISE:
            self.writer.alias(output.node, output.name)
        if self.passes_on:
            return f"cf::Pass<{self.writer.text(output.node)}>"
        space = self.writer.spaces[output.node]
        if space is Space.TILE:
            kind = "TileStore" if moves_rows(self.spec, output) else "StridedStore"
        else:
            kind = _VECTOR_STORES[space]
        return f"cf::{kind}<{o}, {_element(output.dtype)}, {self.writer.text(output.node)}>"


def _element(dtype: DType) -> str:
    return "cf::boolean" if dtype is DType.BOOL else f"cf::{dtype.value}"  # bool is a keyword


def _bits(value: float) -> int:
    """The bits of a float32; what is too large for one is infinite."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return int(struct.unpack("<I", packed)[0])
