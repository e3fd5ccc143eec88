"""Linear layers and the norm behind them."""

from __future__ import annotations

from typing import Literal

from comfuse.generator.catalog.parts import PLAIN, Build, Layouts, affine, layer_norm, rms_norm
from comfuse.generator.errors import SpecError
from comfuse.generator.spec import DType, FusedSpec


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
    layouts: Layouts = PLAIN,
    saved: bool = False,
) -> FusedSpec:
    """``y = layer_norm(a @ b.T + bias + residual) * ln_weight + ln_bias``; scalar ``eps``.

    ``saved``: also ``pre``, what the norm read, and the row's ``mean`` and ``rstd``, float32 of shape (M,).
    """
    b = Build(n, k, dtype, layouts)
    x = affine(b, bias, residual)
    weight = None if ln_weight is None else b.row("ln_weight", ln_weight)
    shift = None if ln_bias is None else b.row("ln_bias", ln_bias)
    y, mean, rstd = layer_norm(b, x, weight, shift, b.scalar("eps"))
    b.store("y", y, out or dtype)
    if saved:
        b.store("pre", x, dtype)
        b.store("mean", mean, DType.FP32)
        b.store("rstd", rstd, DType.FP32)
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
    layouts: Layouts = PLAIN,
    saved: bool = False,
) -> FusedSpec:
    """RMSNorm of a GEMM; scalars ``eps`` and, with a weight, ``weight_offset``.

    ``rms(z) = z * rsqrt(mean(z * z) + eps) * (rms_weight + weight_offset)``.  With the residual
    ``"before"``: ``y = rms(a @ b.T + bias + residual)``; ``"after"``: ``y = rms(a @ b.T + bias) + residual``.

    ``saved``: also ``pre``, what the norm read, and the row's ``rrms``, float32 of shape (M,): what the norm
    multiplied it by.
    """
    if residual_position not in ("before", "after"):
        raise SpecError("residual_position", f"got {residual_position!r}, allowed: 'before', 'after'")
    b = Build(n, k, dtype, layouts)
    before = residual_position == "before"
    x = affine(b, bias, residual if before else None)
    added = None if before or residual is None else b.tile("residual", residual)
    y, rrms = rms_norm(b, x, *_weight_eps_offset(b, rms_weight))
    if added is not None:
        y = b.op("add", y, added, name="y")
    b.store("y", y, out or dtype)
    if saved:
        b.store("pre", x, dtype)
        b.store("rrms", rrms, DType.FP32)
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
    layouts: Layouts = PLAIN,
) -> FusedSpec:
    """``h = a @ b.T + bias + residual`` and ``y = rms(h)``, both stored (a pre-norm transformer block)."""
    b = Build(n, k, dtype, layouts)
    h = affine(b, bias, residual, name="h")
    weight, eps, offset = _weight_eps_offset(b, rms_weight)
    b.store("h", h, out or dtype)
    y, _ = rms_norm(b, h, weight, eps, offset)
    return b.stored("y", y, out or dtype)


def gemma_block(
    n: int,
    k: int,
    dtype: DType,
    *,
    residual: DType = DType.BF16,
    post_weight: DType = DType.BF16,
    pre_weight: DType = DType.BF16,
    out: DType | None = None,
    layouts: Layouts = PLAIN,
) -> FusedSpec:
    """``h = rms(a @ b.T) * (post_weight + weight_offset) + residual`` and
    ``y = rms(h) * (pre_weight + weight_offset)``, both stored; scalars ``eps``, ``weight_offset``.
    """
    b = Build(n, k, dtype, layouts)
    x = b.gemm()
    res = b.tile("residual", residual)
    post, pre = b.row("post_weight", post_weight), b.row("pre_weight", pre_weight)
    eps, offset = b.scalar("eps"), b.scalar("weight_offset")
    normed, _ = rms_norm(b, x, post, eps, offset, suffix="_post")
    h = b.op("add", normed, res, name="h")
    b.store("h", h, out or dtype)
    y, _ = rms_norm(b, h, pre, eps, offset, suffix="_pre")
    return b.stored("y", y, out or dtype)


def _weight_eps_offset(b: Build, rms_weight: DType | None) -> tuple[int | None, int, int | None]:
    weight = None if rms_weight is None else b.row("rms_weight", rms_weight)
    eps = b.scalar("eps")
    return weight, eps, None if rms_weight is None else b.scalar("weight_offset")
