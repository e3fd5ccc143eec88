"""Over which part of the tile space each node varies."""

from __future__ import annotations

from functools import lru_cache

from comfuse.generator.errors import SpecError
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.spec import FusedSpec, Node, Operand, Space

# Structural nodes that read nothing.
_LEAVES = {
    "gemm": Space.TILE,
    "const": Space.SCALAR,
    "row_index": Space.COLUMN,
    "column_index": Space.ROW,
    "row_count": Space.SCALAR,
}


def infer(spec: FusedSpec) -> FusedSpec:
    """The spec itself, if every node has a space and every output one that can be stored.

    Raises:
        SpecError: a reduction reads a value that is not (M, N), or an output does not fit its node: it has
            strides or heads but is not (M, N), or it is (N,) or () and the same whatever the GEMM gives.
    """
    all_spaces = spaces(spec)
    over_rows: list[bool] = []
    for node in spec.nodes:
        over_rows.append(reduces_rows(node, tuple(over_rows[i] for i in node.inputs)))
    for output in spec.outputs:
        space = all_spaces[output.node]
        if is_fixed(space, over_rows[output.node]):
            raise SpecError(
                output.name,
                f"a {space.value} value that reads no col_ or full_ reduction does not depend on the rows of"
                " the GEMM; compute it outside",
            )
        if output.strided and space is not Space.TILE:
            raise SpecError(
                output.name, f"strides and heads are for (M, N) outputs, this one is a {space.value}"
            )
    return spec


def reduces_rows(node: Node, inputs: tuple[bool, ...]) -> bool:
    """Whether a node is, or reads, a reduction over rows; ``inputs`` says so of what it reads."""
    over_rows = node.op in REDUCTIONS and REDUCTIONS[node.op].axis in ("col", "full")
    return over_rows or any(inputs)


def is_fixed(space: Space, over_rows: bool) -> bool:
    """Whether a value is the same whatever the GEMM gives: (N,) or () without a reduction over rows."""
    return space in (Space.ROW, Space.SCALAR) and not over_rows


@lru_cache(maxsize=256)
def spaces(spec: FusedSpec) -> tuple[Space, ...]:
    """The space of every node, in order."""
    result: list[Space] = []
    for node in spec.nodes:
        result.append(node_space(node, tuple(result[i] for i in node.inputs), spec.operands))
    return tuple(result)


def node_space(node: Node, inputs: tuple[Space, ...], operands: tuple[Operand, ...]) -> Space:
    """The space of a node whose inputs have these."""
    if node.op in _LEAVES:
        return _LEAVES[node.op]
    if node.op == "load":
        assert node.operand is not None
        return operands[node.operand].space
    if node.op in REDUCTIONS:
        if inputs[0] is not Space.TILE:
            raise SpecError(
                node.name,
                f"{node.op} reads a {inputs[0].value} value; it needs an (M, N) one, as from an op that also"
                " reads the GEMM",
            )
        return REDUCTIONS[node.op].space
    space = inputs[0]
    for other in inputs[1:]:
        space = space.join(other)
    return space
