"""Evaluates a program in float64, element by element: what a spec means, without torch.

Slow and plain on purpose; the tests hold passes and phase programs against it.
"""

from __future__ import annotations

from collections.abc import Sequence

from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.spec import FusedSpec, Node, Space

Vector = Sequence[float]
Matrix = Sequence[Vector]
Value = float | Vector | Matrix


def interpret(spec: FusedSpec, gemm: Matrix, operands: Sequence[Value]) -> list[Value]:
    """The outputs of a program.

    Args:
        spec: a verified spec.
        gemm: the GEMM's result, M rows of N.
        operands: one for each of the spec's: a matrix of (M, N), a vector of N or M, or a number.

    Returns:
        For each output M rows of N, or M numbers.
    """
    values = _Values(spec, gemm, operands)
    for i in range(len(spec.nodes)):
        values.evaluate(i)
    return [values[o.node] for o in spec.outputs]


def interpret_phases(program: PhaseProgram, gemm: Matrix, operands: Sequence[Value]) -> list[Value]:
    """The outputs as a kernel computes them: phase by phase, with one (M, N) value kept between phases.

    Raises:
        KeyError: a phase reads a value that it does not have.
    """
    spec = program.spec
    outputs: dict[int, Value] = {}
    finished: dict[int, Value] = {}  # reductions
    content: Value = gemm
    for phase in program.phases:
        values = _Values(spec, gemm, operands, {phase.content: content, **finished}, recursive=True)
        tile_operands = {o for o, operand in enumerate(spec.operands) if operand.space is Space.TILE}
        values.forbidden_operands = tile_operands - set(phase.tiles)
        for r in phase.reductions:
            values.evaluate(r)
            finished[r] = values[r]
        for o in phase.stores:
            values.evaluate(spec.outputs[o].node)
            outputs[o] = values[spec.outputs[o].node]
        if phase.keep is not None:
            values.evaluate(phase.keep)
            content = values[phase.keep]
    return [outputs[o] for o in range(len(spec.outputs))]


class _Values:
    def __init__(
        self,
        spec: FusedSpec,
        gemm: Matrix,
        operands: Sequence[Value],
        known: dict[int, Value] | None = None,
        *,
        recursive: bool = False,
    ) -> None:
        self.spec = spec
        self.gemm = gemm
        self.operands = operands
        self.spaces = spaces(spec)
        self.rows = len(gemm)
        self.known: dict[int, Value] = dict(known or {})
        self.recursive = recursive
        self.forbidden_operands: set[int] = set()

    def __getitem__(self, i: int) -> Value:
        return self.known[i]

    def evaluate(self, i: int) -> None:
        """Makes node ``i`` known; its inputs must be, unless evaluation is recursive."""
        if i in self.known:
            return
        node = self.spec.nodes[i]
        if self.recursive:
            if node.op == "gemm" or node.operand in self.forbidden_operands:
                raise KeyError(f"{node.name} is not at hand in this phase")
            for j in node.inputs:
                if self.spec.nodes[j].op in REDUCTIONS and j not in self.known:
                    raise KeyError(f"{self.spec.nodes[j].name} is not finished in this phase")
                self.evaluate(j)
        self.known[i] = self._value(i, node)

    def _value(self, i: int, node: Node) -> Value:
        if node.op == "gemm":
            return self.gemm
        if node.op == "load":
            assert node.operand is not None
            return self.operands[node.operand]
        if node.op == "const":
            assert node.value is not None
            return node.value
        if node.op == "field":
            reduction = self.spec.nodes[node.inputs[0]]
            position = list(REDUCTIONS[reduction.op].fields).index(node.field or "")
            return [_entry(row, position) for row in _sequence(self.known[node.inputs[0]])]
        if node.op in REDUCTIONS:
            row_op = REDUCTIONS[node.op]
            results = [row_op.evaluate(self._row(node.inputs[0], m)) for m in range(self.rows)]
            return [r[0] for r in results] if row_op.is_plain else results
        return self._elementwise(self.spaces[i], node)

    def _elementwise(self, space: Space, node: Node) -> Value:
        def at(m: int, n: int) -> float:
            return float(ELEMENTWISE[node.op].evaluate(*(self._element(j, m, n) for j in node.inputs)))

        if space is Space.SCALAR:
            return at(0, 0)
        if space is Space.ROW:
            return [at(0, n) for n in range(self.spec.n)]
        if space is Space.COLUMN:
            return [at(m, 0) for m in range(self.rows)]
        return [[at(m, n) for n in range(self.spec.n)] for m in range(self.rows)]

    def _row(self, i: int, m: int) -> list[float]:
        return [self._element(i, m, n) for n in range(self.spec.n)]

    def _element(self, i: int, m: int, n: int) -> float:
        value, space = self.known[i], self.spaces[i]
        if space is Space.SCALAR:
            return _number(value)
        if space is Space.ROW:
            return _entry(value, n)
        if space is Space.COLUMN:
            return _entry(value, m)
        return _entry(_sequence(value)[m], n)


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return value


def _sequence(value: Value) -> Sequence[float | Vector]:
    assert not isinstance(value, int | float)
    return value


def _entry(value: Value, i: int) -> float:
    return _number(_sequence(value)[i])
