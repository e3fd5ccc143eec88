"""Whether an eager program rounds what a norm shifts by its row."""

from __future__ import annotations

from collections.abc import Sequence

from comfuse.generator.spec import DType, Node, Operand, Space

_FLOATS = (DType.BF16, DType.FP16, DType.FP32)
_TESTS = {"eq", "ge", "gt", "isinf", "isnan", "le", "logical_and", "logical_not", "logical_or", "logical_xor",
          "lt", "ne"}  # fmt: skip
_SCALES = {"div", "mul", "neg"}  # the relative error of what they give is that of their inputs


def kept_wide(nodes: Sequence[Node], operands: Sequence[Operand], dtype: DType, tile: int) -> str | None:
    """The operand for which torch computes a tile in float32 and never rounds it to ``dtype``; None: it does.

    By torch's rules of promotion: a tensor of another float type than the product's makes what it meets
    float32, numbers do not.  A factor behind the last rounding changes nothing.
    """
    wide: list[str | None] = []  # of each node the operand that made it float32
    exposed: list[str | None] = []  # and the one for which it was never rounded
    of_gemm: list[bool] = []
    for node in nodes[: tile + 1]:
        inputs = node.inputs[1:] if node.op == "where" else node.inputs
        of_gemm.append(node.op == "gemm" or any(of_gemm[i] for i in node.inputs))
        wide.append(_own(node, operands, dtype) or (None if node.op in _TESTS else _first(wide, inputs)))
        if node.op == "where":
            exposed.append(_first(exposed, inputs))
        elif node.op in _SCALES and of_gemm[-1]:
            exposed.append(_first(exposed, [i for i in inputs if of_gemm[i]]))
        else:
            exposed.append(wide[-1])
    return exposed[tile]


def _own(node: Node, operands: Sequence[Operand], dtype: DType) -> str | None:
    """The name of an operand that makes what it meets float32."""
    if node.op != "load":
        return None
    assert node.operand is not None
    operand = operands[node.operand]
    is_wide = operand.dtype in _FLOATS and operand.dtype is not dtype and operand.space is not Space.SCALAR
    return operand.name if is_wide else None


def _first(names: Sequence[str | None], inputs: Sequence[int]) -> str | None:
    return next((names[i] for i in inputs if names[i] is not None), None)
