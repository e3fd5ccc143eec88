"""Builders of the usual programs behind a GEMM.

Everywhere: ``n``, ``k`` and ``dtype`` are the GEMM's; an operand's argument is its dtype, or None to
leave it out; ``out`` is the dtype of tile outputs and defaults to ``dtype``.  Operands come in the order
of the arguments; ``eps`` and ``weight_offset`` are run-time scalars and come last.
"""

from __future__ import annotations

from typing import Literal

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import SpecError
from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.spec import DType, FusedSpec, Space

ACTIVATIONS: tuple[str, ...] = tuple(op.name for op in ELEMENTWISE.values() if op.arity == 1)


def linear(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    activation: str | None = None,
    residual: DType | None = None,
    out: DType | None = None,
) -> FusedSpec:
    """``y = activation(a @ b.T + bias) + residual``; ``activation`` is any of :data:`ACTIVATIONS`."""
    if activation is not None and activation not in ACTIVATIONS:
        raise SpecError("activation", f"got {activation!r}, allowed: {', '.join(ACTIVATIONS)}")
    b = SpecBuilder(n, k, dtype)
    y = _affine(b, bias, None)
    if activation is not None:
        y = b.op(activation, y, name=activation)
    if residual is not None:
        y = b.op("add", y, b.load("residual", Space.TILE, residual), name="y")
    b.output("y", y, out or dtype)
    return b.spec()


def layernorm(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    residual: DType | None = None,
    ln_weight: DType | None = None,
    ln_bias: DType | None = None,
    out: DType | None = None,
) -> FusedSpec:
    """``y = layer_norm(a @ b.T + bias + residual) * ln_weight + ln_bias``; scalar ``eps``."""
    b = SpecBuilder(n, k, dtype)
    x = _affine(b, bias, residual)
    weight = None if ln_weight is None else b.load("ln_weight", Space.ROW, ln_weight)
    shift = None if ln_bias is None else b.load("ln_bias", Space.ROW, ln_bias)
    eps = b.load("eps", Space.SCALAR)
    stats = b.op("row_welford", x, name="stats")
    mean = b.field(stats, "mean", name="mean")
    rstd = b.op("rsqrt", b.op("add", b.field(stats, "var", name="var"), eps), name="rstd")
    y = b.op("mul", b.op("sub", x, mean), rstd, name="x_hat")
    if weight is not None:
        y = b.op("mul", y, weight)
    if shift is not None:
        y = b.op("add", y, shift, name="y")
    b.output("y", y, out or dtype)
    return b.spec()


def rmsnorm(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    residual: DType | None = None,
    rms_weight: DType | None = None,
    residual_position: Literal["before", "after"] = "before",
    out: DType | None = None,
) -> FusedSpec:
    """RMSNorm of a GEMM; scalars ``eps`` and, with a weight, ``weight_offset``.

    ``rms(z) = z * rsqrt(mean(z * z) + eps) * (rms_weight + weight_offset)``.  With the residual
    ``"before"``: ``y = rms(a @ b.T + bias + residual)``; ``"after"``: ``y = rms(a @ b.T + bias) + residual``.
    """
    if residual_position not in ("before", "after"):
        raise SpecError("residual_position", f"got {residual_position!r}, allowed: 'before', 'after'")
    b = SpecBuilder(n, k, dtype)
    before = residual_position == "before"
    x = _affine(b, bias, residual if before else None)
    added = None if before or residual is None else b.load("residual", Space.TILE, residual)
    weight = None if rms_weight is None else b.load("rms_weight", Space.ROW, rms_weight)
    eps = b.load("eps", Space.SCALAR)
    offset = None if rms_weight is None else b.load("weight_offset", Space.SCALAR)
    y = _rms(b, x, weight, eps, offset, suffix="")
    if added is not None:
        y = b.op("add", y, added, name="y")
    b.output("y", y, out or dtype)
    return b.spec()


def add_rmsnorm(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    residual: DType = DType.BF16,
    rms_weight: DType | None = None,
    out: DType | None = None,
) -> FusedSpec:
    """``h = a @ b.T + bias + residual`` and ``y = rms(h)``, both stored (a pre-norm transformer block)."""
    b = SpecBuilder(n, k, dtype)
    h = _affine(b, bias, residual, name="h")
    weight = None if rms_weight is None else b.load("rms_weight", Space.ROW, rms_weight)
    eps = b.load("eps", Space.SCALAR)
    offset = None if rms_weight is None else b.load("weight_offset", Space.SCALAR)
    b.output("h", h, out or dtype)
    b.output("y", _rms(b, h, weight, eps, offset, suffix=""), out or dtype)
    return b.spec()


def gemma_block(
    n: int,
    k: int,
    dtype: DType,
    *,
    residual: DType = DType.BF16,
    post_weight: DType = DType.BF16,
    pre_weight: DType = DType.BF16,
    out: DType | None = None,
) -> FusedSpec:
    """``h = rms(a @ b.T) * (post_weight + weight_offset) + residual`` and
    ``y = rms(h) * (pre_weight + weight_offset)``, both stored; scalars ``eps``, ``weight_offset``.
    """
    b = SpecBuilder(n, k, dtype)
    x = b.gemm()
    res = b.load("residual", Space.TILE, residual)
    post = b.load("post_weight", Space.ROW, post_weight)
    pre = b.load("pre_weight", Space.ROW, pre_weight)
    eps = b.load("eps", Space.SCALAR)
    offset = b.load("weight_offset", Space.SCALAR)
    h = b.op("add", _rms(b, x, post, eps, offset, suffix="_post"), res, name="h")
    b.output("h", h, out or dtype)
    b.output("y", _rms(b, h, pre, eps, offset, suffix="_pre"), out or dtype)
    return b.spec()


def softmax(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    mask: DType | None = None,
    out: DType | None = None,
) -> FusedSpec:
    """``y = softmax((a @ b.T + bias) * scale + mask)`` along the row; ``mask`` (M, N); scalar ``scale``."""
    b = SpecBuilder(n, k, dtype)
    x = _affine(b, bias, None)
    added = None if mask is None else b.load("mask", Space.TILE, mask)
    x = b.op("mul", x, b.load("scale", Space.SCALAR), name="scaled")
    if added is not None:
        x = b.op("add", x, added, name="masked")
    e = b.op("exp", b.op("sub", x, b.op("row_max", x, name="peak")), name="e")
    b.output("y", b.op("div", e, b.op("row_sum", e, name="total"), name="y"), out or dtype)
    return b.spec()


def logsumexp(n: int, k: int, dtype: DType, *, bias: DType | None = None) -> FusedSpec:
    """``lse = logsumexp(a @ b.T + bias)`` along the row, the only output, float32 of shape (M,)."""
    b = SpecBuilder(n, k, dtype)
    x = _affine(b, bias, None)
    peak = b.op("row_max", x, name="peak")
    total = b.op("row_sum", b.op("exp", b.op("sub", x, peak)), name="total")
    b.output("lse", b.op("add", peak, b.op("log", total), name="lse"), DType.FP32)
    return b.spec()


def _affine(b: SpecBuilder, bias: DType | None, residual: DType | None, name: str = "x") -> int:
    x = b.gemm()
    if bias is not None:
        last = residual is None
        x = b.op("add", x, b.load("bias", Space.ROW, bias), name=name if last else None)
    if residual is not None:
        x = b.op("add", x, b.load("residual", Space.TILE, residual), name=name)
    return x


def _rms(b: SpecBuilder, x: int, weight: int | None, eps: int, offset: int | None, *, suffix: str) -> int:
    mean_square = b.op("mul", b.op("row_sumsq", x, name=f"sumsq{suffix}"), b.const(1.0 / b.n, "inverse_n"))
    y = b.op("mul", x, b.op("rsqrt", b.op("add", mean_square, eps), name=f"rrms{suffix}"))
    if weight is None:
        return y
    scale = weight if offset is None else b.op("add", weight, offset, name=f"scale{suffix}")
    return b.op("mul", y, scale, name=f"normed{suffix}")
