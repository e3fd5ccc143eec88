"""Two linear layers back to back, the result of the first on the chip only.

``n`` columns of the result, ``k`` of A, ``h`` of what lies between.  Operands come in the order of the
arguments, those of the first link before those of the second; ``strided`` names the tile operands that are
broadcast over a part of the rows.
"""

from __future__ import annotations

import math
from typing import Literal

from comfuse.generator.catalog.linear import check_activation
from comfuse.generator.catalog.parts import Build, Layouts, activated, layer_norm, rms_norm
from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import SpecError
from comfuse.generator.spec import DType, FusedSpec, Major

_MIDDLE = "middle"
Norm = Literal["layernorm", "rmsnorm"]


def b2b(
    n: int,
    k: int,
    h: int,
    dtype: DType,
    *,
    b0: DType | None = None,
    residual0: DType | None = None,
    b1: DType | None = None,
    residual1: DType | None = None,
    activation0: str | None = None,
    activation1: str | None = None,
    out: DType | None = None,
    strided: tuple[str, ...] = (),
) -> ChainSpec:
    """``y = layer1(layer0(a))`` with ``layer(x) = activation(x @ w.T + b) + residual``."""

    def layer(
        number: int, n: int, k: int, bias: DType | None, residual: DType | None, activation: str | None
    ) -> tuple[Build, int]:
        check_activation(activation)
        b = Build(n, k, dtype, Layouts(strided=strided))
        y = activated(b, _biased(b, b.gemm(), f"b{number}", bias), activation)
        if residual is not None:
            y = b.op("add", y, b.tile(f"residual{number}", residual), name="y")
        return b, y

    first, middle = layer(0, h, k, b0, residual0, activation0)
    second, y = layer(1, n, h, b1, residual1, activation1)
    return ChainSpec((first.stored(_MIDDLE, middle, dtype), second.stored("y", y, out or dtype)))


def mlp(
    n: int,
    k: int,
    h: int,
    dtype: DType,
    *,
    b0: DType | None = None,
    gated: bool = False,
    b_gate: DType | None = None,
    b1: DType | None = None,
    residual: DType | None = None,
    norm_weight: DType | None = None,
    norm_bias: DType | None = None,
    activation: str | None = "gelu",
    norm: Norm | None = None,
    residual_position: Literal["before", "after"] = "before",
    out: DType | None = None,
    strided: tuple[str, ...] = (),
    saved: bool = False,
) -> ChainSpec:
    """``y = norm(middle @ w1.T + b1 + residual) * norm_weight + norm_bias``; with a norm a scalar ``eps``.

    ``middle = activation(a @ w0.T + b0)``, or with a gate ``activation(a @ w_gate.T + b_gate) * (a @ w0.T +
    b0)``, of which ``w_gate`` is the first factor.  The residual may come behind the norm (``"after"``).

    ``saved``: with a norm also what :func:`layernorm` or :func:`rmsnorm` of the second layer saves.
    """
    vectors = (b1, residual, norm_weight, norm_bias)
    return ChainSpec(
        (
            _middle(h, k, dtype, b0, gated, b_gate, activation),
            _outer(n, h, dtype, *vectors, norm, residual_position, out, strided, saved),
        )
    )


def attention(
    n: int,
    k: int,
    h: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    causal: bool = False,
    v_major: Major = Major.MN,
    out: DType | None = None,
    strided: tuple[str, ...] = (),
) -> ChainSpec:
    """``y = softmax(q @ k.T * scale + bias) @ v`` for each batch, with a scalar ``scale``.

    Of (batch, M, k) queries, (batch, h, k) keys and (batch, h, n) values; the second factor is the values'
    transpose, whose contiguous dimension ``v_major`` says.  The bias, or a mask to add, is a tile (M, h); one
    of bools says which scores count.
    ``causal``: a row sees the columns up to its own number.
    """
    b = Build(h, k, dtype, Layouts(batched=True, strided=strided))
    x = b.op("mul", b.gemm(), b.scalar("scale"), name="scores")
    if bias is DType.BOOL:
        x = b.op("where", b.tile("bias", bias), x, b.const(-math.inf), name="attended")
    elif bias is not None:
        x = b.op("add", x, b.tile("bias", bias), name="biased")
    if causal:
        x = b.op("where", b.op("ge", b.row_index(), b.column_index()), x, b.const(-math.inf), name="seen")
    p = b.op("exp", b.op("sub", x, b.op("row_max", x, name="peak")), name="e")
    p = b.op("div", p, b.op("row_sum", p, name="total"), name="p")
    last = Build(n, h, dtype, Layouts(b=v_major, batched=True))
    return ChainSpec((b.stored("p", p, dtype), last.stored("y", last.gemm(), out or dtype)))


def _middle(
    h: int,
    k: int,
    dtype: DType,
    b0: DType | None,
    gated: bool,
    b_gate: DType | None,
    activation: str | None,
) -> FusedSpec:
    check_activation(activation)
    if b_gate is not None and not gated:
        raise SpecError("b_gate", "a bias of a gate needs a gate")
    b = Build(h, k, dtype, Layouts(), products=2 if gated else 1)
    if not gated:
        return b.stored(_MIDDLE, activated(b, _biased(b, b.gemm(), "b0", b0), activation), dtype)
    gate, up = b.gemm(0, "gate"), b.gemm(1, "up")
    gate = activated(b, _biased(b, gate, "b_gate", b_gate), activation)
    return b.stored(_MIDDLE, b.op("mul", gate, _biased(b, up, "b0", b0)), dtype)


def _outer(
    n: int,
    h: int,
    dtype: DType,
    b1: DType | None,
    residual: DType | None,
    norm_weight: DType | None,
    norm_bias: DType | None,
    norm: Norm | None,
    residual_position: Literal["before", "after"],
    out: DType | None,
    strided: tuple[str, ...],
    saved: bool,
) -> FusedSpec:
    if norm not in (None, "layernorm", "rmsnorm"):
        raise SpecError("norm", f"got {norm!r}, allowed: None, 'layernorm', 'rmsnorm'")
    if residual_position not in ("before", "after"):
        raise SpecError("residual_position", f"got {residual_position!r}, allowed: 'before', 'after'")
    for name, given in (("norm_weight", norm_weight), ("norm_bias", norm_bias)):
        if given is not None and norm is None:
            raise SpecError(name, "it needs a norm")
    if norm == "rmsnorm" and norm_bias is not None:
        raise SpecError("norm_bias", "an RMSNorm has none")
    b = Build(n, h, dtype, Layouts(strided=strided))
    pre = _biased(b, b.gemm(), "b1", b1)
    tile = None if residual is None else b.tile("residual", residual)
    if tile is not None and residual_position == "before":
        pre = b.op("add", pre, tile)
    y, statistics = pre, {}
    if norm is not None:
        weight = None if norm_weight is None else b.row("norm_weight", norm_weight)
        shift = None if norm_bias is None else b.row("norm_bias", norm_bias)
        eps = b.scalar("eps")
        if norm == "layernorm":
            y, statistics["mean"], statistics["rstd"] = layer_norm(b, pre, weight, shift, eps)
        else:
            y, statistics["rrms"] = rms_norm(b, pre, weight, eps)
    if tile is not None and residual_position == "after":
        y = b.op("add", y, tile)
    b.store("y", y, out or dtype)
    if saved and norm is not None:
        b.store("pre", pre, dtype)
        for name, node in statistics.items():
            b.store(name, node, DType.FP32)
    return b.spec()


def _biased(b: Build, x: int, name: str, bias: DType | None) -> int:
    return x if bias is None else b.op("add", x, b.row(name, bias))
