"""Programs of two GEMMs with an A each, among them the backward of an MLP's middle."""

from __future__ import annotations

from typing import Any

from comfuse.generator.spec import DType, Space
from tests.gpu.algebra import Algebra, Program


def _middle(a: Algebra, acc: Any, bias: Any) -> tuple[Any, ...]:
    pre = a.add(acc[0], bias)
    d_pre = a.gelu_backward(acc[1], pre)
    return a.gelu(pre), d_pre, a.col_sum(d_pre)


MIDDLE = Program(
    "middle",
    _middle,
    (("bias", Space.ROW),),
    (("middle", None), ("d_pre", None), ("d_bias", None)),
    products=2,
)


def _both(a: Algebra, acc: Any, shift: Any) -> tuple[Any, ...]:
    return *_tiles(a, acc, shift), a.col_sum(acc[1])


def _tiles(a: Algebra, acc: Any, shift: Any) -> tuple[Any, ...]:
    x = a.add(a.relu(acc[0]), shift)
    return x, a.sub(a.mul(acc[1], a.const(2.0)), x)


_SHIFT, _RESULTS = (("shift", Space.ROW, DType.FP32),), (("first", None), ("second", DType.FP32))
BOTH = Program("both", _both, _SHIFT, (*_RESULTS, ("sums", DType.FP32)), products=2)
TILES = Program("both_tiles", _tiles, _SHIFT, _RESULTS, products=2)
