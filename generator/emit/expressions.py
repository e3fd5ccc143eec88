"""Nodes as C++ types, with names where they help or save evaluating twice."""

from __future__ import annotations

from comfuse.generator.emit import layout
from comfuse.generator.emit.names import Namer, sanitise
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import PhaseProgram, axis
from comfuse.generator.spec import FusedSpec, Space

_LEAVES = {"row_index": "cf::RowIndex", "column_index": "cf::ColumnIndex", "row_count": "cf::RowCount"}
_STATS = {"row": "Stat", "group": "GroupStat", "col": "ColStat", "full": "FullStat"}


class Writer:
    """Writes expressions for one phase or tail at a time; ``lines`` are its aliases so far.

    Writers of one kernel share a ``namer``.  ``vectors`` are values a column that phases find
    computed.
    """

    def __init__(self, program: PhaseProgram, namer: Namer, vectors: tuple[int, ...] = ()) -> None:
        self.spec: FusedSpec = program.spec
        self.spaces = spaces(program.spec)
        self.lines: list[str] = []
        self.reduction_index = {r: i for i, r in enumerate(program.reductions)}
        self._namer = namer
        self.operand_names = [self._namer.unique(o.name) for o in self.spec.operands]
        self._constant_names: dict[int, str] = {}
        self._definitions: dict[str, str] = {}  # what an alias stands for -> the alias
        self._shared = self._shared_values()
        self._vectors = dict.fromkeys(vectors, "")  # -> the alias
        self._in_vectors = self._values_in(vectors)
        self._content: int | None = None  # the node that the accumulators hold; None: none can be read
        self._aliases: dict[int, str] = {}

    def enter(self, content: int | None) -> None:
        """Begins a phase whose accumulators hold ``content``, or a tail, which has none."""
        self._content, self.lines, self._aliases = content, [], {}

    def declare_vectors(self) -> list[str]:
        """Their names; to be called before any phase."""
        self.enter(None)
        for i in self._vectors:
            node = self.spec.nodes[i]
            name = self.unique(f"{node.name}_vector" if node.op == "load" else node.name)
            self.declare(name, i, "cf::Vector<", ">")
            self._vectors[i] = name
        return list(self._vectors.values())

    def is_in_vectors(self, i: int) -> bool:
        """Whether no phase computes a node, since it is a vector or part of some."""
        return i in self._vectors or i in self._in_vectors

    def unique(self, name: str) -> str:
        return self._namer.unique(name)

    def constants(self) -> list[tuple[str, float]]:
        """Names and values of the constants written so far."""
        return [(name, self.spec.nodes[i].value or 0.0) for i, name in self._constant_names.items()]

    def _shared_values(self) -> dict[Space, set[int]]:
        """Computed scalars and values a column with several readers."""
        readers = [0] * len(self.spec.nodes)
        for i in [i for node in self.spec.nodes for i in node.inputs]:
            readers[i] += 1
        return {
            space: {
                i
                for i, node in enumerate(self.spec.nodes)
                if readers[i] > 1 and node.op in ELEMENTWISE and self.spaces[i] is space
            }
            for space in (Space.SCALAR, Space.ROW)
        }

    def _values_in(self, vectors: tuple[int, ...]) -> set[int]:
        """The values a column that these are made of."""
        found: set[int] = set()
        for i in reversed(range(len(self.spec.nodes))):
            if i in vectors or i in found:
                found.update(j for j in self.spec.nodes[i].inputs if self.spaces[j] is Space.ROW)
        return found

    def alias(self, i: int, name: str, before: str = "", after: str = "") -> str:
        """The name of node ``i`` in this phase: ``name`` unless it has one, or holds the accumulators."""
        if i not in self._aliases and (i != self._content or before):
            used = len(f"using {sanitise(name)} = {before}{after};") + 4  # 4: a number on collision
            definition = f"{before}{self._fitted(i, used)}{after}"
            if definition not in self._definitions:
                self._definitions[definition] = self.unique(name)
                self.lines += layout.alias(self._definitions[definition], definition)
            self._aliases[i] = self._definitions[definition]
        return self.text(i)

    def declare(self, name: str, i: int, before: str, after: str) -> None:
        """An alias for something made of node ``i``."""
        text = self._fitted(i, len(f"using {name} = {before}{after};"))
        self.lines += layout.alias(name, f"{before}{text}{after}")

    def text(self, i: int) -> str:
        """A node as a C++ type, in this phase: by its name if it has one."""
        if i in self._aliases:
            return self._aliases[i]
        if i in self._vectors and self._content is not None:
            return self._vectors[i]
        # Written once, so that the text cannot explode.  In a phase, shared values a column are its lets.
        if i in self._shared[Space.SCALAR] or (self._content is None and i in self._shared[Space.ROW]):
            return self.alias(i, self.spec.nodes[i].name)
        if i == self._content:
            return self._product(0) if self.spec.nodes[i].op == "gemm" else "cf::Kept"
        return self._expression(i)

    def _fitted(self, i: int, used: int) -> str:
        """The text of node ``i``, short enough for a line of which ``used`` columns are taken.

        Where it is too long, its longest inputs get names of their own.
        """
        if i in self._aliases or i == self._content:
            return self.text(i)
        while used + len(self._expression(i)) > layout.COLUMNS:
            inputs = [j for j in self.spec.nodes[i].inputs if self._can_be_named(j)]
            if not inputs:
                break
            longest = max(inputs, key=lambda j: len(self.text(j)))
            self.alias(longest, self.spec.nodes[longest].name)
        return self._expression(i)

    def _can_be_named(self, i: int) -> bool:
        if i in self._aliases or i == self._content or (i in self._vectors and self._content is not None):
            return False  # it has one
        return self.spec.nodes[i].op in ELEMENTWISE

    def _expression(self, i: int) -> str:
        """A node as its op applied to its inputs."""
        node = self.spec.nodes[i]
        if node.op in _LEAVES:
            return _LEAVES[node.op]
        if node.op == "gemm":
            return self._product(node.product)
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

    def _product(self, product: int) -> str:
        return "cf::Acc" if self.spec.products == 1 else f"cf::Product<{product}>"

    def _stat(self, reduction: int, field: str) -> str:
        over = axis(self.spec, reduction)
        assert over is not None
        cpp = REDUCTIONS[self.spec.nodes[reduction].op].fields[field]
        return f"cf::{_STATS[over]}<{self.reduction_index[reduction]}, cf::{cpp}>"

    def _constant(self, i: int) -> str:
        if i not in self._constant_names:
            self._constant_names[i] = self.unique(self.spec.nodes[i].name)
        return self._constant_names[i]
