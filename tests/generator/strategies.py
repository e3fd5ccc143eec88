"""Random programs and their arguments, for the property tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.interpret import Matrix, Value, interpret
from comfuse.generator.ops import AXES, ELEMENTWISE, REDUCTIONS, Axis
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Major, Pair, Space

N = 8
OPERAND_SPACES = (Space.TILE, Space.ROW, Space.COLUMN, Space.SCALAR)
INTEGERS = (DType.INT8, DType.UINT8, DType.INT32, DType.INT64)
# Ops whose results stay of a size that a comparison can handle, whatever they are nested in.
TAME = (
    "add",
    "sub",
    "mul",
    "neg",
    "abs",
    "minimum",
    "maximum",
    "relu",
    "tanh",
    "sigmoid",
    "gelu",
    "silu",
    "silu_backward",
    "gelu_backward",
    "hardswish",
    "where",
    "gt",
    "logical_or",
    "isfinite",
)


@dataclass(frozen=True)
class _Drawn:
    """A node, with what decides where it can be used."""

    node: int
    space: Space
    late: frozenset[str] = frozenset()  # the kinds of col and full reductions that it reads


class Program:
    """Grows a valid program by drawn steps."""

    def __init__(self, draw: st.DrawFn, b: SpecBuilder, axes: Sequence[Axis], feedback: bool) -> None:
        self.draw = draw
        self.b = b
        self.axes = axes
        self.feedback = feedback
        self.reductions = [r for r in REDUCTIONS.values() if r.axis in axes]
        self.reductions_left = 4 if self.reductions else 0
        self.values: list[_Drawn] = []

    def leaves(self) -> None:
        draw, b = self.draw, self.b
        for product in range(b.products):
            self.values.append(_Drawn(b.gemm(product), Space.TILE))
        for index, space in enumerate(draw(st.lists(st.sampled_from(OPERAND_SPACES), max_size=4))):
            dtype = DType.FP32 if space is Space.SCALAR else draw(st.sampled_from(list(DType)))
            strided = space is Space.TILE and draw(st.booleans())
            self.values.append(_Drawn(b.load(f"operand{index}", space, dtype, strided=strided), space))
        constants = [0.0, 1.0, 2.0, 0.5, -1.5, 1.0 / b.n, 1.0 / (b.n - 1)]
        for value in draw(st.lists(st.sampled_from(constants), max_size=2)):
            self.values.append(_Drawn(b.const(value), Space.SCALAR))
        indices = [
            (b.row_index, Space.COLUMN),
            (b.column_index, Space.ROW),
            (b.row_count, Space.SCALAR),
        ]
        for add, space in draw(st.lists(st.sampled_from(indices), max_size=1)):
            self.values.append(_Drawn(add(), space))

    def step(self, ops: Sequence[str]) -> None:
        kind = self.draw(st.integers(0, 15))
        if kind == 0 and self.reductions_left > 1:
            self._motif()
            return
        reduce = kind < 4 and self.reductions_left
        drawn = self._reduction() if reduce else self._elementwise(self.draw(st.sampled_from(ops)))
        if drawn is not None:
            self.values.append(drawn)

    def _motif(self) -> None:
        """What a pass fuses: two reductions of one value, the second over what the first shifts."""
        axes = [axis for axis in self.axes if self.feedback or axis in ("row", "group")]
        if not axes:
            return
        self.reductions_left -= 2
        b, axis = self.b, self.draw(st.sampled_from(axes))
        x = self.draw(st.sampled_from([v for v in self.values if v.space is Space.TILE]))
        late = x.late | {axis} if axis in ("col", "full") else x.late
        if axis in ("row", "group") and self.draw(st.booleans()):
            shift = b.op(f"{axis}_max", x.node)
            if self.draw(st.booleans()):
                shift = b.op("where", b.op("eq", b.op("abs", shift), b.const(math.inf)), b.const(0.0), shift)
            shifted = b.op("exp", b.op("sub", x.node, shift))
            total = b.op(f"{axis}_sum", shifted)
            result = b.op("add", b.op("log", total), shift)
        else:
            columns = b.const({"row": b.n, "group": b.group, "col": 1, "full": b.n}[axis])
            count = columns if axis in ("row", "group") else b.op("mul", columns, b.row_count())
            shift = b.op("div", b.op(f"{axis}_sum", x.node), count)
            shifted = b.op("sub", x.node, shift)
            total = b.op(f"{axis}_sum", b.op("square", shifted))
            result = b.op("div", total, count)
        space = AXES[axis]
        self.values += [_Drawn(node, space, late) for node in (shift, total, result)]
        self.values.append(_Drawn(shifted, Space.TILE, late))

    def _reduction(self) -> _Drawn:
        self.reductions_left -= 1
        reduction = self.draw(st.sampled_from(self.reductions))
        x = self.draw(st.sampled_from([v for v in self.values if v.space is Space.TILE]))
        node = self.b.op(reduction.name, x.node)
        if not reduction.is_plain:
            node = self.b.field(node, self.draw(st.sampled_from(list(reduction.fields))))
        late = x.late | {reduction.axis} if reduction.axis in ("col", "full") else x.late
        return _Drawn(node, reduction.space, late)

    def _elementwise(self, name: str) -> _Drawn | None:
        op = ELEMENTWISE[name]
        # Recent values first, so that programs grow deep as well as wide.
        chosen = [self.values[-1 - self.draw(st.integers(0, len(self.values) - 1))] for _ in range(op.arity)]
        space, late = Space.SCALAR, frozenset[str]()
        for v in chosen:
            space, late = space.join(v.space), late | v.late
        if late and not self.feedback and (space, *late) not in ((Space.ROW, "col"), (Space.SCALAR, "full")):
            return None
        return _Drawn(self.b.op(name, *(v.node for v in chosen)), space, late)

    def outputs(self) -> None:
        storable = [v for v in self.values if v.late or v.space not in (Space.ROW, Space.SCALAR)]
        for index, v in enumerate(self.draw(st.lists(st.sampled_from(storable), min_size=1, max_size=4))):
            dtype = self.draw(st.sampled_from(list(DType)))
            strided, heads = False, None
            if v.space is Space.TILE:
                strided, heads = self.draw(st.booleans()), self.draw(st.sampled_from([None, self.b.n // 2]))
            self.b.output(f"out{index}", v.node, dtype, strided=strided, heads=heads)


@st.composite
def specs(
    draw: st.DrawFn,
    ops: tuple[str, ...] = tuple(ELEMENTWISE),
    n: int = N,
    max_nodes: int = 14,
    axes: tuple[Axis, ...] = tuple(AXES),
    group: int | None = None,
    feedback: bool = False,
    products: int | None = None,
) -> FusedSpec:
    """A valid program over any of ``ops`` and all reductions, with shared values and several outputs.

    Args:
        group: columns of a group; None for half of N.
        feedback: whether a value of a tile, row or group may read a column or full reduction, which takes
            a second kernel.
        products: None for either number, and two with an A each.
    """
    count = draw(st.integers(1, 2)) if products is None else products
    pairs = st.builds(Pair, st.sampled_from([8, 72]), *[st.sampled_from(list(Major))] * 2)
    b = SpecBuilder(
        n,
        64,
        draw(st.sampled_from([DType.BF16, DType.FP16])),
        products=count,
        a_major=draw(st.sampled_from(list(Major))),
        b_major=draw(st.sampled_from(list(Major))),
        batched=not {"col", "full"} & set(axes) and draw(st.booleans()),
        group=group or n // 2,
        second=draw(st.none() | pairs) if products is None and count == 2 else None,
    )
    program = Program(draw, b, axes, feedback)
    program.leaves()
    for _ in range(draw(st.integers(1, max_nodes))):
        program.step(ops)
    program.outputs()
    return b.spec()


@st.composite
def arguments(draw: st.DrawFn, spec: FusedSpec, rows: int = 3) -> tuple[Matrix | list[Matrix], list[Value]]:
    """A GEMM result, or two, and operands for a spec."""
    quarters = st.integers(-16, 16).map(lambda i: i / 4.0)

    def vector(length: int, dtype: DType) -> list[float]:
        numbers = quarters
        if dtype is DType.BOOL:
            numbers = st.integers(0, 1).map(float)
        elif dtype in INTEGERS:
            numbers = st.integers(0 if dtype is DType.UINT8 else -4, 4).map(float)
        return draw(st.lists(numbers, min_size=length, max_size=length))

    def matrix(dtype: DType) -> Matrix:
        return [vector(spec.n, dtype) for _ in range(rows)]

    operands: list[Value] = []
    for operand in spec.operands:
        if operand.space is Space.SCALAR:
            operands.append(draw(quarters))
        elif operand.space is Space.ROW:
            operands.append(vector(spec.n, operand.dtype))
        elif operand.space is Space.COLUMN:
            operands.append(vector(rows, operand.dtype))
        else:
            operands.append(matrix(operand.dtype))
    gemms = [matrix(spec.dtype) for _ in range(spec.products)]
    return gemms[0] if spec.products == 1 else gemms, operands


def flat(value: Value) -> list[float]:
    """All numbers of a value."""
    if isinstance(value, int | float):
        return [float(value)]
    return [x for part in value for x in flat(part)]


def agree(before: Sequence[Value], after: Sequence[Value]) -> bool:
    """Whether outputs are the same up to float64 rounding."""
    return all(_agree(flat(x), flat(y)) for x, y in zip(before, after, strict=True))


def is_stable(spec: FusedSpec, gemm: Matrix | list[Matrix], operands: list[Value]) -> bool:
    """Whether a change of the inputs in the last places leaves the outputs as they are.

    A comparison of what rounding has left of a difference, or the index of the largest of such, is not.
    """
    whole = (DType.BOOL, *INTEGERS)
    moved_operands = [
        value if operand.dtype in whole else _nudged(value)
        for operand, value in zip(spec.operands, operands, strict=True)
    ]
    moved = interpret(spec, _nudged(gemm), moved_operands)
    return agree(interpret(spec, gemm, operands), moved)


def _agree(x: list[float], y: list[float]) -> bool:
    scale = max((abs(v) for v in x if math.isfinite(v)), default=1.0)
    return all(a == b or _close(a, b, max(scale, 1.0)) for a, b in zip(x, y, strict=True))


def _close(a: float, b: float, scale: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return abs(a - b) <= 1e-9 * max(scale, abs(a), abs(b))


def _nudged(value: Any, place: int = 1) -> Any:
    if isinstance(value, int | float):
        return value * (1.0 + 1e-14 * math.sin(place))
    return [_nudged(part, 7 * place + i) for i, part in enumerate(value)]


__all__ = ["TAME", "N", "Program", "agree", "arguments", "flat", "is_stable", "spaces", "specs"]
