"""A spec under construction, for the passes that rewrite."""

from __future__ import annotations

from dataclasses import replace

from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.passes.infer import is_fixed, node_space, reduces_rows
from comfuse.generator.spec import FusedSpec, Node, Operand, Output, Space


class Graph:
    """Grows node by node.  Adding a node that is already there gives the one that is there.

    Commutative ops match in either order of their inputs.
    """

    def __init__(self, source: FusedSpec) -> None:
        self._source = source
        self._index: dict[tuple[object, ...], int] = {}
        self.nodes: list[Node] = []
        self.spaces: list[Space] = []
        self._over_rows: list[bool] = []

    @property
    def n(self) -> int:
        return self._source.n

    @property
    def group(self) -> int | None:
        return self._source.group

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self._source.operands

    def add(self, node: Node) -> int:
        """The index of this node, or of an equal one of any name."""
        if node.op == "gemm":
            node = replace(node, operand=node.operand or None)  # the first product has one spelling
        key = _key(node)
        if key not in self._index:
            space, over_rows = self._range(node)
            self.spaces.append(space)
            self._over_rows.append(over_rows)
            self.nodes.append(node)
            self._index[key] = len(self.nodes) - 1
        return self._index[key]

    def _range(self, node: Node) -> tuple[Space, bool]:
        """The space of a node whose inputs are here, and whether it reads a reduction over rows."""
        space = node_space(node, tuple(self.spaces[i] for i in node.inputs), self.operands)
        return space, reduces_rows(node, tuple(self._over_rows[i] for i in node.inputs))

    def stands_for(self, index: int, node: Node) -> bool:
        """Whether what stores ``node`` could store this one instead.

        Not if it varies over less, as ``where(1, a, b)`` with a scalar ``a`` does, nor if it is fixed and
        ``node`` is not, as ``where(c, a, a)`` with a row operand ``a``.
        """
        space, over_rows = self._range(node)
        here = self.spaces[index]
        return here is space and is_fixed(here, self._over_rows[index]) is is_fixed(space, over_rows)

    def op(self, name: str, op: str, *inputs: int, field: str | None = None) -> int:
        return self.add(Node(name, op, inputs, field=field))

    def const(self, value: float, name: str | None = None) -> int:
        return self.add(Node(name or "c", "const", value=value))

    def constant(self, index: int) -> float | None:
        """The value of a const node; None for any other."""
        return self.nodes[index].value if self.nodes[index].op == "const" else None

    def is_op(self, index: int, op: str) -> bool:
        return self.nodes[index].op == op

    def spec(self, outputs: tuple[Output, ...]) -> FusedSpec:
        """What has been built, without the nodes that no output needs.  Every GEMM stays."""
        live = {i for i, node in enumerate(self.nodes) if node.op == "gemm"} | {o.node for o in outputs}
        for i in reversed(range(len(self.nodes))):
            if i in live:
                live.update(self.nodes[i].inputs)
        place = {old: new for new, old in enumerate(sorted(live))}
        nodes = tuple(
            _with_inputs(self.nodes[old], tuple(place[i] for i in self.nodes[old].inputs)) for old in place
        )
        stored = tuple(replace(o, node=place[o.node]) for o in outputs)
        return replace(self._source, nodes=nodes, outputs=stored)


def _with_inputs(node: Node, inputs: tuple[int, ...]) -> Node:
    return node if node.inputs == inputs else replace(node, inputs=inputs)


def _key(node: Node) -> tuple[object, ...]:
    inputs = node.inputs
    if node.op in ELEMENTWISE and ELEMENTWISE[node.op].commutative:
        inputs = tuple(sorted(inputs))
    value = None if node.value is None else node.value.hex()  # tells -0.0 from 0.0, finds NaN
    return (node.op, inputs, node.operand, value, node.field)


def moved(node: Node, place: list[int]) -> Node:
    """The node with its inputs looked up in ``place``."""
    return _with_inputs(node, tuple(place[i] for i in node.inputs))


def with_outputs(spec: FusedSpec, place: list[int]) -> tuple[Output, ...]:
    """The outputs of ``spec`` with their nodes looked up in ``place``."""
    return tuple(replace(o, node=place[o.node]) for o in spec.outputs)


def distinct(name: str, taken: set[str]) -> str:
    """A name that is not taken, and takes it."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate
