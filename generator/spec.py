"""What is computed: the one value that every stage of ComFuse starts from.

A :class:`FusedSpec` is a GEMM ``acc[m, n] = sum_k A[m, k] * B[n, k]``, or two side by side that share A or
have one each, followed by a program over the (M, N) tile space: elementwise nodes, reductions, and any
number of outputs.  It is immutable, hashable and has one canonical text form (:meth:`FusedSpec.text`), so
that a compiled graph can carry it as a self-sufficient key.

``M`` and the number of batches are not part of a spec: one spec, and one kernel, serve all of them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any

from comfuse.generator.errors import SpecError

SPEC_VERSION = 2
_VERSION_OF_SECOND = 3  # with a `second`, which whoever reads SPEC_VERSION alone would miss


class DType(Enum):
    """Element type of a tensor in memory.  Everything between load and store is float32."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    E4M3 = "e4m3"  # torch.float8_e4m3fn
    E5M2 = "e5m2"  # torch.float8_e5m2
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"  # one byte, 0 or 1
    INT32 = "int32"
    INT64 = "int64"

    @property
    def nbytes(self) -> int:
        return _BYTES.get(self, 1)


_BYTES = {DType.BF16: 2, DType.FP16: 2, DType.FP32: 4, DType.INT32: 4, DType.INT64: 8}


class Major(Enum):
    """Which dimension of a factor of the GEMM is contiguous in memory."""

    K = "k"
    MN = "mn"  # M of A (M, K), N of B (N, K)


@dataclass(frozen=True)
class Pair:
    """The factors of a product: A (M, K) and B (N, K), each contiguous along one of its dimensions."""

    k: int
    a_major: Major = Major.K
    b_major: Major = Major.K


class Space(Enum):
    """Which part of the (M, N) tile space a value varies over."""

    SCALAR = "scalar"
    ROW = "row"  # a row vector, shape (N,): one value a column of the tile
    COLUMN = "column"  # a column vector, shape (M,): one value a row of the tile
    GROUP = "group"  # shape (M, N / group): one value for each group of columns of a row
    TILE = "tile"  # shape (M, N)

    def join(self, other: Space) -> Space:
        """The space of an elementwise node that reads both."""
        if self is other or other is Space.SCALAR:
            return self
        if self is Space.SCALAR:
            return other
        if {self, other} == {Space.GROUP, Space.COLUMN}:
            return Space.GROUP
        return Space.TILE


@dataclass(frozen=True)
class Operand:
    """A tensor (or run-time scalar) that the program reads besides A and B.

    A TILE is read row by row, its columns contiguous.  A ``strided`` one may broadcast over a part of the
    rows: row m lies at ``m // period * outer + m % period * inner``, with numbers that are known at launch.
    """

    name: str
    space: Space
    dtype: DType = DType.FP32
    strided: bool = False


@dataclass(frozen=True)
class Node:
    """One value of the program.

    ``op`` is a row of the op table (:mod:`comfuse.generator.ops`): an elementwise op or a reduction, whose
    name starts with what it runs over (``row_sum`` gives one value a row, ``group_sum`` one for each group
    of columns of a row, ``col_sum`` one a column, ``full_sum`` one), or structural: ``"gemm"``, ``"load"``
    (an operand), ``"const"``, ``"field"`` (one field, e.g. ``mean``, of a reduction with several),
    ``"row_index"`` (m, a COLUMN), ``"column_index"`` (n, a ROW) and ``"row_count"`` (M, a SCALAR).
    ``inputs`` are indices of earlier nodes, in order; ``x * x`` has the same index twice.
    """

    name: str
    op: str
    inputs: tuple[int, ...] = ()
    operand: int | None = None  # "load": index into FusedSpec.operands; "gemm": which product
    value: float | None = None  # "const"
    field: str | None = None  # "field"

    @property
    def product(self) -> int:
        """Which product a "gemm" node is; no number is the first."""
        return self.operand or 0


@dataclass(frozen=True)
class Output:
    """A node that is stored: a tensor of the shape of the node's space.

    ``strided``: a TILE whose rows and columns may each lie in two levels of strides, known at launch
    (column-major, a slice, head-split).  ``heads``: head size D; of x (..., S, K) the output is the strided
    tensor (..., N / D, S, D).
    """

    name: str
    node: int
    dtype: DType
    strided: bool = False
    heads: int | None = None


@dataclass(frozen=True)
class FusedSpec:
    """One or two GEMMs with N columns, K products a sum, and the program behind them.

    ``dtype`` is the element type of A (M, K) and of every B (N, K).  Two products share A, K and the majors,
    unless ``second`` says what those of the second one are, which then has an A of its own.  ``group`` is the
    number of neighbouring columns that each of the program's group reductions runs over; it divides N.
    ``batched``: A is (batch, M, K), B (batch, N, K) or (N, K), and the program runs for each batch.
    """

    n: int
    k: int
    dtype: DType
    operands: tuple[Operand, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    products: int = 1
    a_major: Major = Major.K
    b_major: Major = Major.K
    batched: bool = False
    group: int | None = None
    second: Pair | None = None

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """One for each A: that of all products, or of the first and of the second."""
        first = Pair(self.k, self.a_major, self.b_major)
        return (first,) if self.second is None else (first, self.second)

    @property
    def products_of_a(self) -> int:
        """How many products read each A."""
        return self.products // len(self.pairs)

    def pair_of(self, product: int) -> Pair:
        return self.pairs[product // self.products_of_a]

    def strided(self, *outputs: str) -> FusedSpec:
        """The program with these (M, N) outputs at any strides of the caller's (``comfuse.ops.region_out``).

        Raises:
            SpecError: there is no output of such a name.
        """
        names = [output.name for output in self.outputs]
        for name in outputs:
            if name not in names:
                raise SpecError(name, f"no output of this program; it has {', '.join(names)}")
        marked = (replace(o, strided=o.strided or o.name in outputs) for o in self.outputs)
        return replace(self, outputs=tuple(marked))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # What is known of a spec is looked up by it, many times for each plan that is considered.
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash, which is another one in every process."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

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
    second = spec.second
    own = {} if second is None else {"second": [second.k, second.a_major.value, second.b_major.value]}
    return {
        "version": SPEC_VERSION if second is None else _VERSION_OF_SECOND,
        "n": spec.n,
        "k": spec.k,
        "dtype": spec.dtype.value,
        "products": spec.products,
        "major": [spec.a_major.value, spec.b_major.value],
        "batched": spec.batched,
        "group": spec.group,
        **own,
        "operands": [[o.name, o.space.value, o.dtype.value, o.strided] for o in spec.operands],
        "nodes": [_encode_node(n) for n in spec.nodes],
        "outputs": [[o.name, o.node, o.dtype.value, o.strided, o.heads] for o in spec.outputs],
    }


def _encode_node(node: Node) -> list[Any]:
    attribute: Any = None
    if node.op in ("load", "gemm"):
        attribute = node.operand
    elif node.op == "const":
        assert node.value is not None
        # JSON has no infinities; a hexadecimal float is exact and has all of them.
        attribute = node.value.hex() if math.isfinite(node.value) else str(node.value)
    elif node.op == "field":
        attribute = node.field
    return [node.name, node.op, list(node.inputs), attribute]


def _decode(data: dict[str, Any]) -> FusedSpec:
    if data["version"] not in (SPEC_VERSION, _VERSION_OF_SECOND):
        raise ValueError(f"spec version {data['version']}, this ComFuse reads {SPEC_VERSION}")
    second = data["second"] if data["version"] == _VERSION_OF_SECOND else None
    return FusedSpec(
        n=int(data["n"]),
        k=int(data["k"]),
        dtype=DType(data["dtype"]),
        operands=tuple(Operand(n, Space(s), DType(d), bool(t)) for n, s, d, t in data["operands"]),
        nodes=tuple(_decode_node(*n) for n in data["nodes"]),
        outputs=tuple(Output(n, int(i), DType(d), bool(t), h) for n, i, d, t, h in data["outputs"]),
        products=int(data["products"]),
        a_major=Major(data["major"][0]),
        b_major=Major(data["major"][1]),
        batched=bool(data["batched"]),
        group=data["group"],
        second=None if second is None else Pair(int(second[0]), Major(second[1]), Major(second[2])),
    )


def _decode_node(name: str, op: str, inputs: list[int], attribute: Any) -> Node:
    return Node(
        name=name,
        op=op,
        inputs=tuple(inputs),
        operand=attribute if op in ("load", "gemm") else None,
        value=_decode_float(attribute) if op == "const" else None,
        field=attribute if op == "field" else None,
    )


def _decode_float(text: str) -> float:
    return float.fromhex(text)
