"""Linear layers and the softmax behind them, or what is left of it."""

from __future__ import annotations

import math

from comfuse.generator.catalog.parts import PLAIN, Build, Layouts, affine
from comfuse.generator.spec import DType, FusedSpec, Space


def softmax(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    mask: DType | None = None,
    out: DType | None = None,
    layouts: Layouts = PLAIN,
) -> FusedSpec:
    """``y = softmax((a @ b.T + bias) * scale + mask)`` along the row; ``mask`` (M, N); scalar ``scale``.

    A bool mask keeps the elements where it is true, and makes the others -inf.
    """
    b = Build(n, k, dtype, layouts)
    x = affine(b, bias)
    masked = None if mask is None else b.tile("mask", mask)
    x = b.op("mul", x, b.scalar("scale"), name="scaled")
    if masked is not None and mask is DType.BOOL:
        x = b.op("where", masked, x, b.const(-math.inf), name="masked")
    elif masked is not None:
        x = b.op("add", x, masked, name="masked")
    e = b.op("exp", b.op("sub", x, b.op("row_max", x, name="peak")), name="e")
    return b.stored("y", b.op("div", e, b.op("row_sum", e, name="total"), name="y"), out or dtype)


def logsumexp(
    n: int, k: int, dtype: DType, *, bias: DType | None = None, layouts: Layouts = PLAIN
) -> FusedSpec:
    """``lse = logsumexp(a @ b.T + bias)`` along the row, the only output, float32 of shape (M,)."""
    b = Build(n, k, dtype, layouts)
    return b.stored("lse", _lse(b, affine(b, bias)), DType.FP32)


def cross_entropy(
    n: int,
    k: int,
    dtype: DType,
    *,
    target: DType = DType.INT64,
    bias: DType | None = None,
    layouts: Layouts = PLAIN,
    saved: bool = False,
) -> FusedSpec:
    """``loss = logsumexp(x) - x[target]`` of ``x = a @ b.T + bias`` along the row, float32 of shape (M,).

    ``target`` (M,).  The loss is 0 where the target is the scalar ``ignore_index``, and NaN where it is any
    other number that is no column.

    ``saved``: also ``lse``, the logsumexp, float32 of shape (M,).
    """
    b = Build(n, k, dtype, layouts)
    wanted = b.load("target", Space.COLUMN, target)
    x = affine(b, bias)
    ignored = b.scalar("ignore_index")
    chosen = b.op("where", b.op("eq", b.column_index(), wanted), x, b.const(0.0), name="chosen")
    lse = _lse(b, x)
    loss = b.op("sub", lse, b.op("row_sum", chosen, name="logit"))
    valid = b.op(
        "logical_and",
        b.op("ge", wanted, b.const(0.0)),
        b.op("lt", wanted, b.const(float(n))),
        name="valid",
    )
    loss = b.op("where", valid, loss, b.const(math.nan))
    loss = b.op("where", b.op("eq", wanted, ignored), b.const(0.0), loss, name="loss")
    b.store("loss", loss, DType.FP32)
    if saved:
        b.store("lse", lse, DType.FP32)
    return b.spec()


def logits_gradient(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    target: DType | None = None,
    lse: DType = DType.FP32,
    grad: DType = DType.FP32,
    out: DType | None = None,
    layouts: Layouts = PLAIN,
    sums: bool = False,
) -> FusedSpec:
    """``d = softmax(x) * grad`` along the row, the gradient of the logits ``x = a @ b.T + bias`` where
    ``grad`` is that of their logsumexp.

    With a ``target``: ``d = (softmax(x) - one_hot(target)) * grad``, where ``grad`` is that of the
    cross-entropy.  ``lse``, the logsumexp of the row, ``grad`` and ``target`` are of shape (M,).  ``sums``:
    also the sum of each column of d, float32 of shape (N,).
    """
    b = Build(n, k, dtype, layouts)
    x = affine(b, bias)
    wanted = None if target is None else b.load("target", Space.COLUMN, target)
    normaliser, scale = b.load("lse", Space.COLUMN, lse), b.load("grad", Space.COLUMN, grad)
    d = b.op("exp", b.op("sub", x, normaliser), name="probability")
    if wanted is not None:
        hit = b.op("eq", b.column_index(), wanted)
        d = b.op("sub", d, b.op("where", hit, b.const(1.0), b.const(0.0)))
    d = b.op("mul", d, scale, name="d")
    b.store("d", d, out or dtype)
    if sums:
        b.store("sums", b.op("col_sum", d, name="sums"), DType.FP32)
    return b.spec()


def _lse(b: Build, x: int) -> int:
    return b.field(b.op("row_softmax", x, name="stats"), "lse", name="lse")
