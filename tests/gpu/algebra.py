"""Programs written once over an algebra of values.

Run over :class:`SpecAlgebra` a program becomes a FusedSpec; over :class:`TorchAlgebra`, in float64, it is
the reference.  Neither goes through the code under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Major, Pair, Space

TORCH_DTYPES = {
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.FP32: torch.float32,
    DType.E4M3: torch.float8_e4m3fn,
    DType.E5M2: torch.float8_e5m2,
    DType.INT8: torch.int8,
    DType.UINT8: torch.uint8,
    DType.BOOL: torch.bool,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
}


class In(NamedTuple):
    """An operand; dtype None is the GEMM's."""

    name: str
    space: Space
    dtype: DType | None = None
    strided: bool = False


class Out(NamedTuple):
    """An output; dtype None is the GEMM's."""

    name: str
    dtype: DType | None = None
    strided: bool = False
    heads: int | None = None


@dataclass(frozen=True)
class Geometry:
    """What a spec says besides its program."""

    n: int
    k: int
    dtype: DType = DType.BF16
    a_major: Major = Major.K
    b_major: Major = Major.K
    batched: bool = False
    second: Pair | None = None


class Algebra(Protocol):
    """What a program may do with its values: ops by the names of the op table, reductions by theirs."""

    def const(self, value: float) -> Any: ...

    def field(self, stats: Any, field: str) -> Any: ...

    def row_index(self) -> Any: ...

    def column_index(self) -> Any: ...

    def row_count(self) -> Any: ...

    def __getattr__(self, op: str) -> Callable[..., Any]: ...


@dataclass(frozen=True)
class Program:
    """``function(algebra, acc, *operands)`` returns one value an output; with two products ``acc`` is a pair.

    ``operands`` and ``outputs`` may be given as plain tuples, in the order of In's and Out's fields.
    ``scalars``: the run-time values of the SCALAR operands, in order.
    """

    name: str
    function: Callable[..., tuple[Any, ...]]
    operands: tuple[In, ...] = ()
    outputs: tuple[Out, ...] = (Out("y"),)
    scalars: tuple[float, ...] = ()
    group: int | None = None
    products: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "operands", tuple(In(*o) for o in self.operands))
        object.__setattr__(self, "outputs", tuple(Out(*o) for o in self.outputs))

    def spec(self, g: Geometry) -> FusedSpec:
        options = {"batched": g.batched, "group": self.group, "second": g.second}
        b = SpecBuilder(g.n, g.k, g.dtype, self.products, g.a_major, g.b_major, **options)
        algebra = SpecAlgebra(b)
        acc = [b.gemm(p) for p in range(self.products)]
        operands = [
            b.load(o.name, o.space, _operand_dtype(o, g.dtype), strided=o.strided) for o in self.operands
        ]
        results = self.function(algebra, acc[0] if self.products == 1 else acc, *operands)
        for o, node in zip(self.outputs, results, strict=True):
            b.output(o.name, node, o.dtype or g.dtype, strided=o.strided, heads=o.heads)
        return b.spec()

    def reference(
        self, acc: Sequence[Tensor], operands: Sequence[Tensor], rows: Tensor, m: int
    ) -> tuple[Any, ...]:
        """float64 results on some rows, of the batches all.

        Args:
            acc: a (rows, N) GEMM result for each product, batched (batches, rows, N).
            operands: without the scalars; what broadcasts to that, in any dtype.
            rows: the rows' numbers.
            m: the rows of a batch.

        Returns:
            What the function gives: tensors that broadcast to the shape of their space, with (rows, N) for
            a group's, or plain numbers.
        """
        algebra = TorchAlgebra(rows, m, acc[0].shape[-1], self.group)
        tensors, scalars = iter(operands), iter(self.scalars)
        device = acc[0].device
        values = [
            torch.tensor(next(scalars), dtype=torch.float64, device=device)
            if o.space is Space.SCALAR
            else next(tensors).double()
            for o in self.operands
        ]
        doubles = [x.double() for x in acc]
        return self.function(algebra, doubles[0] if self.products == 1 else doubles, *values)


def _operand_dtype(o: In, dtype: DType) -> DType:
    return DType.FP32 if o.space is Space.SCALAR else o.dtype or dtype


class SpecAlgebra:
    """Values are the node numbers of a builder."""

    def __init__(self, builder: SpecBuilder) -> None:
        self._builder = builder
        self.const = builder.const
        self.field = builder.field
        self.row_index = builder.row_index
        self.column_index = builder.column_index
        self.row_count = builder.row_count

    def __getattr__(self, op: str) -> Callable[..., int]:
        return lambda *inputs: self._builder.op(op, *inputs)


def _first(x: Tensor, extreme: Tensor, dim: int) -> Tensor:
    """The first index along ``dim`` of a NaN, or else of the extreme."""
    is_nan = x.isnan()
    found = torch.where(is_nan.any(dim, keepdim=True), is_nan, x == extreme)
    size = [1] * x.dim()
    size[dim] = x.shape[dim]
    index = torch.arange(x.shape[dim], device=x.device, dtype=torch.float64).view(size)
    return torch.where(found, index, math.inf).amin(dim, keepdim=True)


def _welford(x: Tensor, dim: int) -> dict[str, Tensor]:
    var, mean = torch.var_mean(x, dim, correction=0, keepdim=True)
    return {"mean": mean, "var": var}


def _softmax(x: Tensor, dim: int) -> dict[str, Tensor]:
    largest = x.amax(dim, keepdim=True)
    total = (x - largest).exp().sum(dim, keepdim=True)
    return {"max": largest, "sumexp": total, "lse": torch.logsumexp(x, dim, keepdim=True)}


_MONOIDS: dict[str, Callable[[Tensor, int], Any]] = {
    "sum": lambda x, dim: x.sum(dim, keepdim=True),
    "prod": lambda x, dim: x.prod(dim, keepdim=True),
    "max": lambda x, dim: x.amax(dim, keepdim=True),
    "min": lambda x, dim: x.amin(dim, keepdim=True),
    "sumsq": lambda x, dim: (x * x).sum(dim, keepdim=True),
    "welford": _welford,
    "softmax": _softmax,
    "argmax": lambda x, dim: _first(x, x.amax(dim, keepdim=True), dim),
    "argmin": lambda x, dim: _first(x, x.amin(dim, keepdim=True), dim),
}


def _number(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A test of torch's, which gives bools, as 1.0 or 0.0."""
    return lambda *x: function(*x).double()


@dataclass(frozen=True)
class TorchAlgebra:
    """Values are float64 tensors, (rows, N), with batches in front if there are any, or what broadcasts.

    A group's values are repeated over its columns.
    """

    rows: Tensor
    m: int
    n: int
    group: int | None

    _FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
        "gelu_backward": torch.ops.aten.gelu_backward,
        "silu_backward": torch.ops.aten.silu_backward,
        "where": lambda c, x, y: torch.where(c != 0, x, y),
        **{name: _number(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
        "logical_not": _number(torch.logical_not),
        "logical_and": _number(torch.logical_and),
    }

    def const(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self.rows.device)

    def field(self, stats: dict[str, Tensor], field: str) -> Tensor:
        return stats[field]

    def row_index(self) -> Tensor:
        return self.rows.double()[:, None]

    def column_index(self) -> Tensor:
        return torch.arange(self.n, device=self.rows.device).double()

    def row_count(self) -> Tensor:
        return self.const(self.m)

    def __getattr__(self, op: str) -> Callable[..., Any]:
        axis, _, monoid = op.partition("_")
        if axis in ("row", "group", "col", "full") and monoid in _MONOIDS:
            return lambda x: self._reduce(axis, _MONOIDS[monoid], x)
        return self._FUNCTIONS.get(op) or getattr(torch, op)

    def _reduce(self, axis: str, monoid: Callable[[Tensor, int], Any], x: Tensor) -> Any:
        if axis == "row":
            return monoid(x, -1)
        if axis == "col":
            return monoid(x, -2)
        if axis == "full":
            return _each(monoid(x.flatten(), 0), lambda v: v.view(()))
        assert self.group is not None
        grouped = monoid(x.unflatten(-1, (-1, self.group)), -1)
        return _each(grouped, lambda v: v.expand(*v.shape[:-1], self.group).flatten(-2))


def _each(result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(result, dict):
        return {name: change(value) for name, value in result.items()}
    return change(result)
