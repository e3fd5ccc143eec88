"""Random programs and their arguments, for the property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.interpret import Value
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Space

N = 8
SPACES = (Space.TILE, Space.ROW, Space.COLUMN, Space.SCALAR)
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
    "where",
    "gt",
)


@st.composite
def specs(
    draw: st.DrawFn, ops: tuple[str, ...] = tuple(ELEMENTWISE), n: int = N, max_nodes: int = 14
) -> FusedSpec:
    """A valid program over any of ``ops`` and all reductions, with shared values and several outputs."""
    b = SpecBuilder(n, 64, draw(st.sampled_from([DType.BF16, DType.FP16])))
    values = [b.gemm()]
    kinds = [Space.TILE]
    for index, space in enumerate(draw(st.lists(st.sampled_from(SPACES), max_size=4))):
        dtype = DType.FP32 if space is Space.SCALAR else draw(st.sampled_from(list(DType)))
        values.append(b.load(f"operand{index}", space, dtype))
        kinds.append(space)
    for value in draw(
        st.lists(st.sampled_from([0.0, 1.0, 2.0, 0.5, -1.5, 1.0 / n, 1.0 / (n - 1)]), max_size=2)
    ):
        values.append(b.const(value))
        kinds.append(Space.SCALAR)
    for _ in range(draw(st.integers(1, max_nodes))):
        wide = [v for v, kind in zip(values, kinds, strict=True) if kind in (Space.TILE, Space.ROW)]
        if draw(st.integers(0, 3)) == 0:
            reduction = draw(st.sampled_from(list(REDUCTIONS)))
            value = b.op(reduction, draw(st.sampled_from(wide)))
            if not REDUCTIONS[reduction].is_plain:
                value = b.field(value, draw(st.sampled_from(list(REDUCTIONS[reduction].fields))))
            kind = Space.COLUMN
        else:
            op = ELEMENTWISE[draw(st.sampled_from(ops))]
            # Recent values first, so that programs grow deep as well as wide.
            chosen = [draw(st.integers(0, len(values) - 1)) for _ in range(op.arity)]
            chosen = [len(values) - 1 - i for i in chosen]
            value = b.op(op.name, *(values[i] for i in chosen))
            kind = Space.SCALAR
            for i in chosen:
                kind = kind.join(kinds[i])
        values.append(value)
        kinds.append(kind)
    storable = [v for v, kind in zip(values, kinds, strict=True) if kind in (Space.TILE, Space.COLUMN)]
    for index, node in enumerate(draw(st.lists(st.sampled_from(storable), min_size=1, max_size=3))):
        b.output(f"out{index}", node, draw(st.sampled_from(list(DType))))
    return b.spec()


@st.composite
def arguments(draw: st.DrawFn, spec: FusedSpec, rows: int = 3) -> tuple[list[list[float]], list[Value]]:
    """A GEMM result and operands for a spec."""
    numbers = st.integers(-16, 16).map(lambda i: i / 4.0)

    def vector(length: int) -> list[float]:
        return draw(st.lists(numbers, min_size=length, max_size=length))

    def matrix() -> list[list[float]]:
        return [vector(spec.n) for _ in range(rows)]

    operands: list[Value] = []
    for operand in spec.operands:
        if operand.space is Space.SCALAR:
            operands.append(draw(numbers))
        elif operand.space is Space.ROW:
            operands.append(vector(spec.n))
        elif operand.space is Space.COLUMN:
            operands.append(vector(rows))
        else:
            operands.append(matrix())
    return matrix(), operands


def flat(value: Value) -> list[float]:
    """All numbers of a value."""
    if isinstance(value, int | float):
        return [float(value)]
    return [x for part in value for x in flat(part)]


__all__ = ["TAME", "N", "arguments", "flat", "spaces", "specs"]
