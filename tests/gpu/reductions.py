"""Programs with reductions of every kind, as outputs and read back by the tile."""

from __future__ import annotations

from typing import Any

from comfuse.generator.spec import DType, Space
from tests.gpu.algebra import Algebra, Out, Program

TILE, ROW, COLUMN, SCALAR = Space.TILE, Space.ROW, Space.COLUMN, Space.SCALAR
FP32, BF16, INT32, INT64, E4M3, BOOL = (
    DType.FP32, DType.BF16, DType.INT32, DType.INT64, DType.E4M3, DType.BOOL,
)  # fmt: skip
SCHEDULES = ("pingpong-128x128", "pingpong2-128x128", "cooperative-128x256")
WIDE_SCHEDULES = SCHEDULES[::2]  # the other has too few registers for many programs
SCHEDULES_OF_TWO = ("pingpong-128x64", "pingpong2-128x64", "cooperative-128x128")


def _wide(*names: str, dtype: DType = FP32) -> tuple[Out, ...]:
    return tuple(Out(name, dtype) for name in names)


def _factor(a: Algebra, x: Any, *, sizes: bool) -> Any:
    """1 or -1 by the sign of x; with ``sizes`` 2 if it is 31, 0.5 if it is 33: products are exact."""
    one = a.const(1.0)
    sign = a.where(a.lt(x, a.const(0.0)), a.const(-1.0), one)
    if not sizes:
        return sign
    size = a.where(a.eq(a.abs(x), a.const(31.0)), a.const(2.0), one)
    size = a.where(a.eq(a.abs(x), a.const(33.0)), a.const(0.5), size)
    return a.mul(sign, size)


def plain(axis: str, *monoids: str) -> Program:
    """These monoids of (acc + addend) along one axis, prod of factors of it; nothing else is stored."""

    def function(a: Algebra, acc: Any, addend: Any) -> tuple[Any, ...]:
        x = a.add(acc, addend)
        # Over everything the exponent would overflow.
        factor = _factor(a, x, sizes=axis != "full") if "prod" in monoids else None
        return tuple(getattr(a, f"{axis}_{m}")(factor if m == "prod" else x) for m in monoids)

    group = 64 if axis == "group" else None
    name = f"{axis}_{'_'.join(monoids)}"
    return Program(name, function, (("addend", TILE, None),), _wide(*monoids), group=group)


# As many at once as the schedules have registers for.
PAIRS = (("sum", "max"), ("min", "sumsq"), ("prod",))
ROW_PLAIN, GROUP_PLAIN, COLUMN_PLAIN = (
    tuple(plain(axis, *monoids) for monoids in PAIRS) for axis in ("row", "group", "col")
)
FULL_PLAIN = plain("full", "sum", "max", "min", "sumsq", "prod")


def _row_fields(a: Algebra, acc: Any, addend: Any) -> tuple[Any, ...]:
    x = a.add(acc, addend)
    welford, softmax = a.row_welford(x), a.row_softmax(x)
    fields = [a.field(welford, "mean"), a.field(welford, "var")]
    fields += [a.field(softmax, f) for f in ("max", "sumexp", "lse")]
    return (*fields, a.row_argmax(x), a.row_argmin(x))


ROW_FIELDS = Program(
    "row_fields",
    _row_fields,
    (("addend", TILE, FP32),),
    (*_wide("mean", "var", "max", "sumexp", "lse"), Out("argmax", INT64), Out("argmin", INT32)),
)


def _softmax(a: Algebra, acc: Any, mask: Any) -> tuple[Any, Any]:
    x = a.add(acc, mask)
    stats = a.row_softmax(x)
    y = a.div(a.exp(a.sub(x, a.field(stats, "max"))), a.field(stats, "sumexp"))
    return y, a.field(stats, "lse")


SOFTMAX = Program("online_softmax", _softmax, (("mask", TILE, None),), (Out("y"), Out("lse", FP32)))


def _marks(a: Algebra, acc: Any, bias: Any) -> tuple[Any, Any]:
    """1 at the largest entry of each row, -1 at the smallest; whether any is above 6 (a maximum of tests)."""
    x, zero = a.add(acc, bias), a.const(0.0)
    at_largest = a.eq(a.column_index(), a.row_argmax(x))
    at_smallest = a.eq(a.column_index(), a.row_argmin(x))
    some = a.row_max(a.gt(x, a.const(6.0)))
    return a.where(at_largest, a.const(1.0), a.where(at_smallest, a.const(-1.0), zero)), some


ROW_MARKS = Program("row_marks", _marks, (("bias", ROW, FP32),), (Out("y"), Out("some", BOOL)))


def _scaled(a: Algebra, acc: Any, bias: Any) -> tuple[Any, Any]:
    """x times the product of its row's signs, and x less the row's smallest entry: two feedbacks."""
    x = a.add(acc, bias)
    return a.mul(x, a.row_prod(_factor(a, x, sizes=True))), a.sub(x, a.row_min(x))


ROW_SCALED = Program("row_scaled", _scaled, (("bias", ROW, FP32),), (Out("y"), Out("z")))


def group_fields(group: int) -> Program:
    """Statistics of each group, and what reads them: per-head RMSNorm, then the row's largest entry."""

    def function(a: Algebra, acc: Any, weight: Any, eps: Any) -> tuple[Any, ...]:
        welford, softmax = a.group_welford(acc), a.group_softmax(acc)
        scale = a.rsqrt(a.add(a.mul(a.group_sumsq(acc), a.const(1 / group)), eps))
        y = a.mul(a.mul(acc, scale), weight)
        lse, var = a.field(softmax, "lse"), a.field(welford, "var")
        return y, a.field(welford, "mean"), var, lse, a.row_max(y)

    return Program(
        f"group{group}_fields",
        function,
        (("weight", ROW, None), ("eps", SCALAR)),
        (Out("y"), *_wide("mean", "var", "lse", "largest")),
        scalars=(1e-5,),
        group=group,
    )


def group_quantise(group: int) -> Program:
    """Block-scaled fp8: the largest magnitude of each group becomes 448; the scale is an output."""

    def function(a: Algebra, acc: Any, residual: Any) -> tuple[Any, Any]:
        x = a.add(acc, residual)
        largest = a.maximum(a.group_max(a.abs(x)), a.const(2.0**-10))
        return a.mul(x, a.div(a.const(448.0), largest)), a.mul(largest, a.const(1 / 448))

    operands = (("residual", TILE, None),)
    outputs = (Out("y", E4M3), Out("scale", FP32))
    return Program(f"group{group}_quantise", function, operands, outputs, group=group)


def _column_fields(a: Algebra, acc: Any, residual: Any) -> tuple[Any, ...]:
    """BatchNorm's statistics beside the activation itself; a row vector computed from them."""
    x = a.add(acc, residual)
    stats = a.col_welford(x)
    mean, var = a.field(stats, "mean"), a.field(stats, "var")
    unbiased = a.mul(var, a.div(a.row_count(), a.maximum(a.sub(a.row_count(), a.const(1.0)), a.const(1.0))))
    return x, mean, unbiased, a.col_max(x)


COLUMN_FIELDS = Program(
    "column_fields",
    _column_fields,
    (("residual", TILE, None),),
    (Out("x"), *_wide("mean", "unbiased", "max")),
)


def _full_fields(a: Algebra, acc: Any, residual: Any) -> tuple[Any, ...]:
    x = a.add(acc, residual)
    stats = a.full_welford(x)
    root = a.sqrt(a.full_sumsq(x))
    return a.field(stats, "mean"), a.field(stats, "var"), root, a.full_max(x), a.full_sum(a.relu(x))


FULL_FIELDS = Program(
    "full_fields",
    _full_fields,
    (("residual", TILE, None),),
    _wide("mean", "var", "norm", "max", "total"),
)

RELU_SUM = Program(
    "relu_sum", lambda a, acc: (a.full_sum(a.relu(acc)),), outputs=(Out("total", FP32),)
)  # the GEMM's result is never stored


def _all_axes(a: Algebra, acc: Any, bias: Any, scale: Any) -> tuple[Any, ...]:
    """Softmax of each row, column sums of what it gives, the largest of all: three axes and a feedback."""
    x = a.mul(a.add(acc, bias), scale)
    stats = a.row_softmax(x)
    y = a.div(a.exp(a.sub(x, a.field(stats, "max"))), a.field(stats, "sumexp"))
    return y, a.col_sum(y), a.full_max(x), a.field(stats, "lse")


ALL_AXES = Program(
    "all_axes",
    _all_axes,
    (("bias", ROW, None), ("scale", COLUMN, FP32)),
    (Out("y"), *_wide("column_sum", "largest", "lse")),
)


def _logsumexp(a: Algebra, acc: Any, label: Any) -> tuple[Any, ...]:
    """Cross-entropy: no logit is stored, however many there are."""
    lse = a.field(a.row_softmax(acc), "lse")
    at_label = a.where(a.eq(a.column_index(), label), acc, a.const(0.0))
    return lse, a.sub(lse, a.row_sum(at_label)), a.row_argmax(acc)


CROSS_ENTROPY = Program(
    "cross_entropy",
    _logsumexp,
    (("label", COLUMN, INT64),),
    (*_wide("lse", "loss"), Out("best", INT32)),
)


def swiglu(*, bias: bool = False) -> Program:
    def function(a: Algebra, acc: list[Any], *biases: Any) -> tuple[Any]:
        gate, up = acc
        if biases:
            gate, up = a.add(gate, biases[0]), a.add(up, biases[1])
        return (a.mul(a.silu(gate), up),)

    operands = (("gate_bias", ROW, None), ("up_bias", ROW, None)) if bias else ()
    return Program("swiglu_bias" if bias else "swiglu", function, operands, products=2)


def _gated_norm(a: Algebra, acc: list[Any], residual: Any, eps: Any) -> tuple[Any, Any]:
    """A norm behind the gate, which reads the second product once more after it."""
    x = a.add(a.mul(a.gelu(acc[0]), acc[1]), residual)
    stats = a.row_welford(x)
    scale = a.rsqrt(a.add(a.field(stats, "var"), eps))
    y = a.mul(a.sub(x, a.field(stats, "mean")), scale)
    return a.add(y, acc[1]), a.field(stats, "mean")


GATED_NORM = Program(
    "gated_norm",
    _gated_norm,
    (("residual", TILE, None), ("eps", SCALAR)),
    (Out("y"), Out("mean", FP32)),
    scalars=(1e-5,),
    products=2,
)
DIFFERENCE = Program("difference", lambda a, acc: (a.sub(*acc),), outputs=(Out("y", FP32),), products=2)
