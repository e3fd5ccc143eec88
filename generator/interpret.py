"""Evaluates a program in float64, element by element: what a spec means, without torch.

Slow and plain on purpose; the tests hold passes and phase programs against it.  One batch at a time: the
batches of a batched program do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from comfuse.generator.chain import ChainSpec
from comfuse.generator.deferral import Deferred
from comfuse.generator.ops import AXES, ELEMENTWISE, REDUCTIONS, Reduction
from comfuse.generator.ops.ieee import to_bf16, to_fp16
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Node, Space

if TYPE_CHECKING:
    from comfuse.generator.phases import PhaseProgram

Vector = Sequence[float]
Matrix = Sequence[Vector]
Value = float | Vector | Matrix
_Fields = dict[str, Value]  # of a reduction with several


def interpret(spec: FusedSpec, gemm: Matrix | Sequence[Matrix], operands: Sequence[Value]) -> list[Value]:
    """The outputs of a program.

    Args:
        spec: a verified spec.
        gemm: the GEMM's result, M rows of N; of a program with two products both results.
        operands: one for each of the spec's: a matrix of (M, N), a vector of N or M, or a number.

    Returns:
        For each output M rows of N or of N / group, M numbers, N numbers, or a number.
    """
    values = _Values(spec, _products(spec, gemm), operands)
    for i in range(len(spec.nodes)):
        values.evaluate(i)
    return [values[o.node] for o in spec.outputs]


def interpret_phases(
    program: PhaseProgram, gemm: Matrix | Sequence[Matrix], operands: Sequence[Value]
) -> list[Value]:
    """The outputs as a kernel computes them: phase by phase, with one (M, N) value kept between phases.

    Args and returns: as of :func:`interpret`, with the program of a spec.

    Raises:
        KeyError: a phase or a tail reads a value that it does not have.
    """
    spec = program.spec
    products = _products(spec, gemm)
    outputs: dict[int, Value] = {}
    finished: dict[int, Value | _Fields] = {}
    readable: dict[int, Value | _Fields] = {}  # by the tiles of later phases
    first = next(i for i, node in enumerate(spec.nodes) if node.op == "gemm" and node.product == 0)
    kept: Value = products[0]
    for phase in program.phases:
        step = _Step(spec, products, operands, {**readable, phase.content: kept})
        # Read straight from memory; the other tiles are fetched for the phases that list them.
        strided = {o for o, operand in enumerate(spec.operands) if operand.strided}
        step.operands_at_hand |= strided | set(phase.tiles)
        if phase.content != first:
            step.lost.add(first)
        finished.update({r: step.reduce(r) for r in phase.reductions})
        outputs.update({o: step.value(spec.outputs[o].node) for o in phase.stores})
        if phase.keep is not None:
            kept = step.value(phase.keep)
        # A group lies within a tile; the result of a row or column is that of all its tiles, if they waited.
        axes = {"group"} | ({"row"} if phase.waits else set()) | ({"col"} if phase.columns_wait else set())
        readable.update({r: finished[r] for r in phase.reductions if _axis(spec.nodes[r]) in axes})
    tails = {"row": program.row_tail.stores if program.row_tail else ()}
    tails |= {"col": program.column_stores, "full": program.full_stores}
    for axis, stores in tails.items():
        at_hand = {r: v for r, v in finished.items() if _axis(spec.nodes[r]) == axis}
        step = _Step(spec, products, operands, at_hand)
        step.lost |= {i for i, node in enumerate(spec.nodes) if node.op == "gemm"}
        outputs.update({o: step.value(spec.outputs[o].node) for o in stores})
    return [outputs[o] for o in range(len(spec.outputs))]


def interpret_chain(
    chain: ChainSpec,
    gemm: Matrix | Sequence[Matrix],
    factors: Sequence[Matrix],
    operands: Sequence[Value],
    *,
    round_middle: bool = True,
) -> list[Value]:
    """The outputs of a chain.

    Args:
        chain: a verified chain.
        gemm: the result of the first link's GEMM, as :func:`interpret` takes it.
        factors: B of each later link, N rows of K.
        operands: of all links, link by link.
        round_middle: round what one link hands to the next to the factors' element type, as a kernel does.

    Returns:
        The outputs of the last link, as of :func:`interpret`.
    """
    rest = list(operands)
    outputs: list[Value] = []
    for number, link in enumerate(chain.links):
        if number > 0:
            gemm = _times(cast(Matrix, outputs[0]), factors[number - 1], link.dtype if round_middle else None)
        own, rest = rest[: len(link.operands)], rest[len(link.operands) :]
        outputs = interpret(link, gemm, own)
    return outputs


def interpret_deferred(
    deferred: Deferred,
    gemm: Matrix | Sequence[Matrix],
    factor: Matrix,
    operands: Sequence[Value],
    *,
    round_middle: bool = True,
) -> list[Value]:
    """The outputs of a chain whose middle reductions are deferred.

    Args:
        gemm, operands, round_middle: as :func:`interpret_chain` takes them.
        factor: B of the second link.

    Returns:
        The outputs of the last link, as of :func:`interpret`.
    """
    first, last = deferred.links.links
    own, rest = operands[: len(first.operands)], operands[len(first.operands) :]
    values = _Values(first, _products(first, gemm), own)
    for i in range(len(first.nodes)):
        values.evaluate(i)
    tile, *columns = [values[o.node] for o in first.outputs]
    vectors = [
        [sum(values.element(c, 0, h) * x for h, x in enumerate(row)) for row in factor]
        for c in deferred.vectors
    ]
    product = _times(cast(Matrix, tile), factor, first.dtype if round_middle else None)
    return interpret(last, product, [*rest, *columns, *vectors])


def _times(a: Matrix, b: Matrix, dtype: DType | None) -> Matrix:
    """``a @ b.T``, where ``a`` is rounded first, to the factors' element type, or not at all."""
    if dtype is not None:
        to_element = {DType.BF16: to_bf16, DType.FP16: to_fp16}[dtype]
        a = [[to_element(x) for x in row] for row in a]
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in b] for row in a]


def _products(spec: FusedSpec, gemm: Matrix | Sequence[Matrix]) -> list[Matrix]:
    return [cast(Matrix, gemm)] if spec.products == 1 else list(cast(Sequence[Matrix], gemm))


def _entry(results: Callable[[int, int], Vector], position: int, m: int, n: int) -> float:
    return results(m, n)[position]


def _axis(node: Node) -> str:
    return REDUCTIONS[node.op].axis


class _Values:
    """The values of a program's nodes, as far as they are known."""

    def __init__(
        self,
        spec: FusedSpec,
        products: Sequence[Matrix],
        operands: Sequence[Value],
        known: dict[int, Value | _Fields] | None = None,
    ) -> None:
        self.spec = spec
        self.products = products
        self.operands = operands
        self.spaces = spaces(spec)
        self.rows = len(products[0])
        self.known: dict[int, Value | _Fields] = dict(known or {})

    def __getitem__(self, i: int) -> Value:
        value = self.known[i]
        assert not isinstance(value, dict)
        return value

    def evaluate(self, i: int) -> None:
        """Makes node ``i`` known; its inputs must be."""
        self.known[i] = self._value(i, self.spec.nodes[i])

    def _value(self, i: int, node: Node) -> Value | _Fields:
        if node.op == "gemm":
            return self.products[node.product]
        if node.op == "load":
            assert node.operand is not None
            return self.operands[node.operand]
        if node.op == "const":
            assert node.value is not None
            return node.value
        if node.op == "row_index":
            return [float(m) for m in range(self.rows)]
        if node.op == "column_index":
            return [float(n) for n in range(self.spec.n)]
        if node.op == "row_count":
            return float(self.rows)
        if node.op == "field":
            fields = self.known[node.inputs[0]]
            assert isinstance(fields, dict)
            assert node.field is not None
            return fields[node.field]
        if node.op in REDUCTIONS:
            return self._reduction(REDUCTIONS[node.op], node.inputs[0])
        function = ELEMENTWISE[node.op].evaluate
        return self._over(
            self.spaces[i],
            lambda m, n: float(function(*(self.element(j, m, n) for j in node.inputs))),
        )

    def _reduction(self, reduction: Reduction, i: int) -> Value | _Fields:
        every_row, every_column = range(self.rows), range(self.spec.n)
        group = self.spec.group or 1

        def results(m: int, n: int) -> tuple[float, ...]:
            rows = every_row if reduction.axis in ("col", "full") else range(m, m + 1)
            columns = {"col": range(n, n + 1), "group": range(n, n + group)}.get(reduction.axis, every_column)
            return reduction.evaluate([self.element(i, row, column) for row in rows for column in columns])

        space = AXES[reduction.axis]
        fields: _Fields = {}
        for position, name in enumerate(reduction.fields):
            fields[name] = self._over(space, partial(_entry, results, position))
        return fields["value"] if reduction.is_plain else fields

    def _over(self, space: Space, at: Callable[[int, int], float]) -> Value:
        """A value of this space, from its elements; ``at`` gets a row and a column."""
        columns = range(0, self.spec.n, self.spec.group or 1) if space is Space.GROUP else range(self.spec.n)
        if space is Space.SCALAR:
            return at(0, 0)
        if space is Space.ROW:
            return [at(0, n) for n in columns]
        if space is Space.COLUMN:
            return [at(m, 0) for m in range(self.rows)]
        return [[at(m, n) for n in columns] for m in range(self.rows)]

    def element(self, i: int, m: int, n: int) -> float:
        """Of node ``i``, at row m and column n."""
        value, space = self[i], self.spaces[i]
        if space is Space.SCALAR:
            return cast(float, value)
        if space is Space.ROW:
            return cast(Vector, value)[n]
        if space is Space.COLUMN:
            return cast(Vector, value)[m]
        return cast(Matrix, value)[m][n // (self.spec.group or 1) if space is Space.GROUP else n]


class _Step(_Values):
    """A phase or a tail: evaluates what is asked for, from what is at hand."""

    def __init__(
        self,
        spec: FusedSpec,
        products: Sequence[Matrix],
        operands: Sequence[Value],
        known: dict[int, Value | _Fields],
    ) -> None:
        super().__init__(spec, products, operands, known)
        self.operands_at_hand = {
            o for o, operand in enumerate(spec.operands) if operand.space is not Space.TILE
        }
        self.lost: set[int] = set()  # products that are no longer in registers

    def value(self, i: int) -> Value:
        self.evaluate(i)
        return self[i]

    def reduce(self, i: int) -> Value | _Fields:
        """The result of a reduction; it is not at hand in this step."""
        (x,) = self.spec.nodes[i].inputs
        self.evaluate(x)
        return self._reduction(REDUCTIONS[self.spec.nodes[i].op], x)

    def evaluate(self, i: int) -> None:
        if i in self.known:
            return
        node = self.spec.nodes[i]
        if i in self.lost:
            raise KeyError(f"{node.name} is not in registers in this step")
        if node.op == "load" and node.operand not in self.operands_at_hand:
            raise KeyError(f"{node.name} is not fetched in this step")
        if node.op in REDUCTIONS:
            raise KeyError(f"{node.name} is not finished in this step")
        for j in node.inputs:
            self.evaluate(j)
        super().evaluate(i)
