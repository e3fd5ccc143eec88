"""What is computed: the one value that every stage of ComFuse starts from.

A :class:`FusedSpec` is a GEMM ``acc[m, n] = sum_k A[m, k] * B[n, k]`` followed by a program over the
(M, N) tile space: elementwise nodes, row reductions, and any number of outputs.  It is immutable,
hashable and has one canonical text form (:meth:`FusedSpec.text`), so that a compiled graph can carry
it as a self-sufficient key.

``M`` is not part of a spec: one spec, and one kernel, serve every M.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

SPEC_VERSION = 1


class DType(Enum):
    """Element type of a tensor in memory.  Everything between load and store is float32."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def nbytes(self) -> int:
        return 4 if self is DType.FP32 else 2


class Space(Enum):
    """Which part of the (M, N) tile space a value varies over."""

    SCALAR = "scalar"
    ROW = "row"  # a row vector, shape (N,): one value a column of the tile
    COLUMN = "column"  # a column vector, shape (M,): one value a row of the tile
    TILE = "tile"  # shape (M, N)

    def join(self, other: Space) -> Space:
        """The space of an elementwise node that reads both."""
        if self is other or other is Space.SCALAR:
            return self
        if self is Space.SCALAR:
            return other
        return Space.TILE


@dataclass(frozen=True)
class Operand:
    """A tensor (or run-time scalar) that the program reads besides A and B."""

    name: str
    space: Space
    dtype: DType = DType.FP32


@dataclass(frozen=True)
class Node:
    """One value of the program.

    ``op`` is ``"gemm"``, ``"load"`` (an operand), ``"const"``, or a row of the op table
    (:mod:`comfuse.generator.ops`): an elementwise op, a row reduction (``"row_sum"``, ...), or
    ``"field"`` (one field, e.g. ``mean``, of a reduction with several).  ``inputs`` are indices of
    earlier nodes, in order; ``x * x`` has the same index twice.
    """

    name: str
    op: str
    inputs: tuple[int, ...] = ()
    operand: int | None = None  # "load": index into FusedSpec.operands
    value: float | None = None  # "const"
    field: str | None = None  # "field"


@dataclass(frozen=True)
class Output:
    """A node that is stored.  A TILE node gives an (M, N) tensor, a COLUMN node an (M,) tensor."""

    name: str
    node: int
    dtype: DType


@dataclass(frozen=True)
class FusedSpec:
    """A GEMM with N columns, K products a sum, and the program behind it.

    ``dtype`` is the element type of A (M, K) and of B (N, K), both row-major.
    """

    n: int
    k: int
    dtype: DType
    operands: tuple[Operand, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]

    def text(self) -> str:
        """Canonical text: equal specs give equal text, and :meth:`parse` restores the spec."""
        return json.dumps(_encode(self), separators=(",", ":"), allow_nan=False)

    @staticmethod
    def parse(text: str) -> FusedSpec:
        """The spec whose canonical text this is.

        Raises:
            ValueError: the text is not that of a spec of this version.
        """
        try:
            return _decode(json.loads(text))
        except (KeyError, TypeError, IndexError) as e:
            raise ValueError(f"not the text of a FusedSpec: {e!r}") from e


def _encode(spec: FusedSpec) -> dict[str, Any]:
    return {
        "version": SPEC_VERSION,
        "n": spec.n,
        "k": spec.k,
        "dtype": spec.dtype.value,
        "operands": [[o.name, o.space.value, o.dtype.value] for o in spec.operands],
        "nodes": [_encode_node(n) for n in spec.nodes],
        "outputs": [[o.name, o.node, o.dtype.value] for o in spec.outputs],
    }


def _encode_node(node: Node) -> list[Any]:
    attribute: Any = None
    if node.op == "load":
        attribute = node.operand
    elif node.op == "const":
        assert node.value is not None
        # JSON has no infinities; a hexadecimal float is exact and has all of them.
        attribute = node.value.hex() if math.isfinite(node.value) else str(node.value)
    elif node.op == "field":
        attribute = node.field
    return [node.name, node.op, list(node.inputs), attribute]


def _decode(data: dict[str, Any]) -> FusedSpec:
    if data["version"] != SPEC_VERSION:
        raise ValueError(f"spec version {data['version']}, this ComFuse reads {SPEC_VERSION}")
    return FusedSpec(
        n=int(data["n"]),
        k=int(data["k"]),
        dtype=DType(data["dtype"]),
        operands=tuple(Operand(n, Space(s), DType(d)) for n, s, d in data["operands"]),
        nodes=tuple(_decode_node(*n) for n in data["nodes"]),
        outputs=tuple(Output(n, int(i), DType(d)) for n, i, d in data["outputs"]),
    )


def _decode_node(name: str, op: str, inputs: list[int], attribute: Any) -> Node:
    return Node(
        name=name,
        op=op,
        inputs=tuple(inputs),
        operand=attribute if op == "load" else None,
        value=_decode_float(attribute) if op == "const" else None,
        field=attribute if op == "field" else None,
    )


def _decode_float(text: str) -> float:
    return float.fromhex(text)
