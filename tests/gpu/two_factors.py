"""The backward of an MLP's middle: two GEMMs with an A each."""

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
    (("middle", None), ("d_pre", None), ("d_bias", DType.FP32)),
    products=2,
)
