"""A phase program as C++ type aliases."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from comfuse.generator.emit import layout
from comfuse.generator.emit.names import Namer, sanitise
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import Phase, PhaseProgram
from comfuse.generator.spec import FusedSpec, Operand, Space


@dataclass
class Declarations:
    """The alias lines of a kernel, by section, ready for the template."""

    operands: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    phases: list[list[str]] = field(default_factory=list)
    tensor_operands: list[str] = field(default_factory=list)  # names, in the order of the ABI


def declare(program: PhaseProgram) -> Declarations:
    """All aliases that the kernel's program needs."""
    return _Writer(program).write()


class _Writer:
    def __init__(self, program: PhaseProgram) -> None:
        self.program = program
        self.spec: FusedSpec = program.spec
        self.namer = Namer()
        self.operand_names = [self.namer.unique(o.name) for o in self.spec.operands]
        self.reduction_index = {r: i for i, r in enumerate(program.reductions)}
        self.columns = {i for phase in program.phases for i in phase.columns}
        self.shared_scalars = self._shared_scalars()
        self.constant_names: dict[int, str] = {}
        self.definitions: dict[str, str] = {}  # what an alias stands for -> the alias
        # Of the phase in hand:
        self.phase: Phase = program.phases[0]
        self.lines: list[str] = []
        self.aliases: dict[int, str] = {}

    def write(self) -> Declarations:
        result = Declarations()
        self._declare_operands(result)
        for number, phase in enumerate(self.program.phases):
            result.phases.append(self._declare_phase(number, phase))
        result.constants = layout.with_comments(
            [
                (f"using {name} = cf::Imm<{_bits(self._value(i)):#010x}>;", repr(self._value(i)))
                for i, name in self.constant_names.items()
            ]
        )
        return result

    # --- operands and constants ---

    def _declare_operands(self, result: Declarations) -> None:
        scalars = 0
        for operand, name in zip(self.spec.operands, self.operand_names, strict=True):
            if operand.space is Space.SCALAR:
                type_ = f"cf::Scalar<{scalars}>"
                scalars += 1
            else:
                type_ = _tensor_type(operand, len(result.tensor_operands))
                result.tensor_operands.append(name)
            result.operands.append(f"using {name} = {type_};")

    def _shared_scalars(self) -> set[int]:
        """Computed scalars with several readers: written once, so that the text cannot explode."""
        readers = [0] * len(self.spec.nodes)
        for i in [i for node in self.spec.nodes for i in node.inputs]:
            readers[i] += 1
        all_spaces = spaces(self.spec)
        return {
            i
            for i, node in enumerate(self.spec.nodes)
            if readers[i] > 1 and node.op in ELEMENTWISE and all_spaces[i] is Space.SCALAR
        }

    def _value(self, i: int) -> float:
        value = self.spec.nodes[i].value
        assert value is not None
        return value

    # --- phases ---

    def _declare_phase(self, number: int, phase: Phase) -> list[str]:
        self.phase, self.lines, self.aliases = phase, [], {}
        for index, i in enumerate(phase.columns):
            self._alias(i, self._column_name(i), f"cf::Column<{index}, ", ">")
        for i in phase.lets:
            if self.spec.nodes[i].op in ELEMENTWISE:
                self._alias(i, self.spec.nodes[i].name)
        effects = self._effects(phase)
        tiles = [self.operand_names[t] for t in phase.tiles]
        lets = [self.text(i) for i in phase.lets]
        columns = [self.aliases[i] for i in phase.columns]
        parts = {"Tiles": tiles, "Columns": columns, "Lets": lets, "Effects": effects}
        lists = [self._list(name, f"{name}{number}", items) for name, items in parts.items()]
        self.lines += layout.declaration(f"Phase{number}", "cf::Phase", lists)
        return self.lines

    def _list(self, template: str, alias: str, items: list[str]) -> str:
        """A list of types, under a name of its own if it is long."""
        text = f"cf::{template}<{', '.join(items)}>"
        if layout.fits_an_argument(text, "cf::Phase"):
            return text
        self.lines += layout.declaration(alias, f"cf::{template}", items)
        return alias

    def _column_name(self, i: int) -> str:
        for o in self.phase.stores:
            if self.spec.outputs[o].node == i:
                return self.spec.outputs[o].name
        name = self.spec.nodes[i].name
        return f"{name}_column" if self.spec.nodes[i].op == "load" else name

    def _effects(self, phase: Phase) -> list[str]:
        effects = []
        if phase.keep is not None:
            self._alias(phase.keep, self.spec.nodes[phase.keep].name)
            effects.append(f"cf::Keep<{self.text(phase.keep)}>")
        for r in phase.reductions:
            effects.append(self._reduction(r))
        for o in phase.stores:
            effects.append(self._store(o))
        return effects

    def _reduction(self, r: int) -> str:
        node = self.spec.nodes[r]
        head = f"cf::RowReduce<{self.reduction_index[r]}, cf::{REDUCTIONS[node.op].monoid}, "
        # The plain name is for the value that later phases read.
        name = self.namer.unique(f"reduce_{node.name}" if r in self.columns else node.name)
        argument = self._fitted(node.inputs[0], len(f"using {name} = {head}>;"))
        self.lines.append(f"using {name} = {head}{argument}>;")
        return name

    def _store(self, o: int) -> str:
        output = self.spec.outputs[o]
        kind = "TileStore" if output.node not in self.phase.columns else "ColumnStore"
        if self.spec.nodes[output.node].op in ELEMENTWISE:
            self._alias(output.node, output.name)
        return f"cf::{kind}<{o}, cf::{output.dtype.value}, {self.text(output.node)}>"

    # --- expressions ---

    def _alias(self, i: int, name: str, before: str = "", after: str = "") -> None:
        """Gives node ``i`` a name in this phase, unless it has one (or holds the accumulators)."""
        if i in self.aliases or (i == self.phase.content and not before):
            return
        used = len(f"using {sanitise(name)} = {before}{after};") + 4  # 4: a number on collision
        definition = f"{before}{self._fitted(i, used)}{after}"
        if definition not in self.definitions:
            self.definitions[definition] = self.namer.unique(name)
            self.lines.append(f"using {self.definitions[definition]} = {definition};")
        self.aliases[i] = self.definitions[definition]

    def _fitted(self, i: int, used: int) -> str:
        """The text of node ``i``, short enough for a line of which ``used`` columns are taken.

        Where it is too long, its longest inputs get names of their own.
        """
        if i in self.aliases or i == self.phase.content:
            return self.text(i)
        while used + len(self._expression(i)) > layout.COLUMNS:
            inputs = [j for j in self.spec.nodes[i].inputs if self._can_be_named(j)]
            if not inputs:
                break
            longest = max(inputs, key=lambda j: len(self.text(j)))
            self._alias(longest, self.spec.nodes[longest].name)
        return self._expression(i)

    def _can_be_named(self, i: int) -> bool:
        return self.spec.nodes[i].op in ELEMENTWISE and i not in self.aliases and i != self.phase.content

    def text(self, i: int) -> str:
        """A node as a C++ type, in this phase: by its name if it has one."""
        if i in self.shared_scalars:
            self._alias(i, self.spec.nodes[i].name)
        if i in self.aliases:
            return self.aliases[i]
        if i == self.phase.content:
            return "cf::Acc" if self.spec.nodes[i].op == "gemm" else "cf::Kept"
        return self._expression(i)

    def _expression(self, i: int) -> str:
        """A node as its op applied to its inputs."""
        node = self.spec.nodes[i]
        if node.op == "load":
            assert node.operand is not None
            return self.operand_names[node.operand]
        if node.op == "const":
            return self._constant(i)
        if node.op == "field":
            assert node.field is not None
            return self._stat(node.inputs[0], node.field)
        if node.op in REDUCTIONS:
            return self._stat(i, "value")
        return f"cf::{ELEMENTWISE[node.op].functor}<{', '.join(self.text(j) for j in node.inputs)}>"

    def _stat(self, reduction: int, field: str) -> str:
        cpp = REDUCTIONS[self.spec.nodes[reduction].op].fields[field]
        return f"cf::Stat<{self.reduction_index[reduction]}, cf::{cpp}>"

    def _constant(self, i: int) -> str:
        if i not in self.constant_names:
            self.constant_names[i] = self.namer.unique(self.spec.nodes[i].name)
        return self.constant_names[i]


def _tensor_type(operand: Operand, index: int) -> str:
    kind = {Space.TILE: "Tile", Space.ROW: "RowVector", Space.COLUMN: "ColumnVector"}[operand.space]
    return f"cf::{kind}<{index}, cf::{operand.dtype.value}>"


def _bits(value: float) -> int:
    """The bits of a float32; what is too large for one is infinite."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return int(struct.unpack("<I", packed)[0])
