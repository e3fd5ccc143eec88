"""Over which part of the tile space each node varies."""

from __future__ import annotations

from functools import lru_cache

from comfuse.generator.errors import SpecError
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.spec import FusedSpec, Node, Operand, Space


def infer(spec: FusedSpec) -> FusedSpec:
    """The spec itself, if every node has a space and every output one that can be stored.

    Raises:
        SpecError: a row reduction reads a value that does not vary along the row, or an output is
            neither (M, N) nor (M,).
    """
    all_spaces = spaces(spec)
    for output in spec.outputs:
        space = all_spaces[output.node]
        if space not in (Space.TILE, Space.COLUMN):
            raise SpecError(
                output.name,
                f"a {space.value} value does not depend on the rows of the GEMM; outputs are (M, N) or (M,)",
            )
    return spec


@lru_cache(maxsize=256)
def spaces(spec: FusedSpec) -> tuple[Space, ...]:
    """The space of every node, in order."""
    result: list[Space] = []
    for node in spec.nodes:
        result.append(node_space(node, tuple(result[i] for i in node.inputs), spec.operands))
    return tuple(result)


def node_space(node: Node, inputs: tuple[Space, ...], operands: tuple[Operand, ...]) -> Space:
    """The space of a node whose inputs have these."""
    if node.op == "gemm":
        return Space.TILE
    if node.op == "load":
        assert node.operand is not None
        return operands[node.operand].space
    if node.op == "const":
        return Space.SCALAR
    if node.op in REDUCTIONS:
        if inputs[0] not in (Space.TILE, Space.ROW):
            raise SpecError(
                node.name, f"{node.op} reads a {inputs[0].value} value; it needs one with columns"
            )
        return Space.COLUMN
    space = inputs[0]
    for other in inputs[1:]:
        space = space.join(other)
    return space
