"""The programs of most tests: activations, norms, softmax.  See algebra.py for how they are written."""

from __future__ import annotations

from typing import Any

from comfuse.generator.spec import DType, Space
from tests.gpu.algebra import Algebra, Program


def _add_all(a: Algebra, *values: Any) -> Any:
    total = values[0]
    for v in values[1:]:
        total = a.add(total, v)
    return total


def _layernorm(a: Algebra, x: Any, weight: Any, shift: Any, eps: Any) -> Any:
    stats = a.row_welford(x)
    mean, var = a.field(stats, "mean"), a.field(stats, "var")
    return a.add(a.mul(a.mul(a.sub(x, mean), a.rsqrt(a.add(var, eps))), weight), shift)


def _rmsnorm(a: Algebra, x: Any, weight: Any, eps: Any, inverse_n: Any) -> Any:
    return a.mul(a.mul(x, a.rsqrt(a.add(a.mul(a.row_sumsq(x), inverse_n), eps))), weight)


TILE, ROW, COLUMN, SCALAR = Space.TILE, Space.ROW, Space.COLUMN, Space.SCALAR
_EPS = ("eps", SCALAR, None)

BARE = Program("bare", lambda a, acc: (acc,))
BIAS = Program("bias", lambda a, acc, bias: (a.add(acc, bias),), (("bias", ROW, None),))
BIAS_GELU = Program("bias_gelu", lambda a, acc, bias: (a.gelu(a.add(acc, bias)),), (("bias", ROW, None),))
RELU_PRODUCT = Program(
    "relu_product",
    lambda a, acc, gate, residual: (a.add(a.mul(a.relu(acc), gate), residual),),
    (("gate", TILE, None), ("residual", TILE, None)),
)
LAYERNORM = Program(
    "layernorm",
    lambda a, acc, bias, residual, w, b, eps: (_layernorm(a, _add_all(a, acc, bias, residual), w, b, eps),),
    (("bias", ROW, None), ("residual", TILE, None), ("ln_weight", ROW, None), ("ln_bias", ROW, None), _EPS),
    scalars=(1e-5,),
)
# What autocast gives: parameters in float32 beside half-precision activations.
LAYERNORM_MIXED = Program(
    "layernorm_mixed",
    LAYERNORM.function,
    (
        ("bias", ROW, DType.FP32),
        ("residual", TILE, DType.FP32),
        ("ln_weight", ROW, DType.FP16),
        ("ln_bias", ROW, DType.BF16),
        _EPS,
    ),
    scalars=(1e-5,),
)


def rmsnorm(n: int, *, after: bool, offset: float) -> Program:
    """RMSNorm over N columns, the residual before or after it, the weight plus an offset."""

    def function(a: Algebra, acc: Any, residual: Any, weight: Any, eps: Any) -> tuple[Any]:
        x = acc if after else a.add(acc, residual)
        y = _rmsnorm(a, x, a.add(weight, a.const(offset)) if offset else weight, eps, a.const(1 / n))
        return (a.add(y, residual) if after else y,)

    operands = (("residual", TILE, None), ("rms_weight", ROW, None), _EPS)
    name = f"rmsnorm_{'after' if after else 'before'}_{offset:g}"
    return Program(name, function, operands, scalars=(1e-6,))


def _softmax(a: Algebra, acc: Any, bias: Any) -> tuple[Any]:
    x = a.add(acc, bias)
    e = a.exp(a.sub(x, a.row_max(x)))
    return (a.div(e, a.row_sum(e)),)


SOFTMAX = Program("softmax", _softmax, (("bias", ROW, None),))


def gemma_chain(n: int) -> Program:
    """h = residual + RMSNorm(acc) (1 + w0); y = RMSNorm(h) (1 + w1): two reductions in a row, two outputs."""

    def function(a: Algebra, acc: Any, residual: Any, w0: Any, w1: Any, eps: Any) -> tuple[Any, Any]:
        inverse_n, one = a.const(1 / n), a.const(1.0)
        h = a.add(residual, _rmsnorm(a, acc, a.add(w0, one), eps, inverse_n))
        return h, _rmsnorm(a, h, a.add(w1, one), eps, inverse_n)

    operands = (("residual", TILE, None), ("w0", ROW, None), ("w1", ROW, None), _EPS)
    return Program("gemma_chain", function, operands, (("h", None), ("y", None)), (1e-6,))


def row_quantisation(n: int) -> Program:
    """x over its row's absolute maximum; that and the row's mean are float32 outputs of shape (M,)."""

    def function(a: Algebra, acc: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
        x = a.add(a.mul(acc, scale), bias)
        largest = a.maximum(a.row_max(x), a.neg(a.row_min(x)))
        return a.div(x, largest), largest, a.mul(a.row_sum(x), a.const(1 / n))

    operands = (("scale", COLUMN, DType.FP32), ("bias", ROW, DType.FP32))
    outputs = (("y", None), ("largest", DType.FP32), ("mean", DType.FP32))
    return Program("row_quantisation", function, operands, outputs)
