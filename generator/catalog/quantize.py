"""Linear layers whose result is quantised row by row."""

from __future__ import annotations

from typing import Literal

from comfuse.generator.catalog.parts import PLAIN, Build, Layouts, affine, layer_norm, rms_norm
from comfuse.generator.errors import SpecError
from comfuse.generator.spec import DType, FusedSpec

#: The largest number of each dtype that values may be quantised to.
LARGEST: dict[DType, float] = {DType.E4M3: 448.0, DType.E5M2: 57344.0}


def quantize(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    norm_weight: DType | None = None,
    norm_bias: DType | None = None,
    norm: Literal["layernorm", "rmsnorm"] | None = None,
    out: DType = DType.E4M3,
    layouts: Layouts = PLAIN,
) -> FusedSpec:
    """``q = y / scale`` in ``out`` and ``scale``, float32 of shape (M,), of ``y = norm(a @ b.T + bias)``.

    ``scale`` is the row's largest ``|y|`` over the largest number of ``out``, and 1 where that is 0.  With a
    norm: scalar ``eps``.
    """
    if out not in LARGEST:
        raise SpecError("out", f"got {out.value}, allowed: {', '.join(d.value for d in LARGEST)}")
    if norm not in (None, "layernorm", "rmsnorm"):
        raise SpecError("norm", f"got {norm!r}, allowed: None, 'layernorm', 'rmsnorm'")
    if norm is None and (norm_weight or norm_bias):
        raise SpecError("norm", "got weights of a norm, but no norm")
    if norm == "rmsnorm" and norm_bias is not None:
        raise SpecError("norm_bias", "rmsnorm has no bias")
    b = Build(n, k, dtype, layouts)
    y = affine(b, bias)
    if norm is not None:
        weight = None if norm_weight is None else b.row("norm_weight", norm_weight)
        shift = None if norm_bias is None else b.row("norm_bias", norm_bias)
        eps = b.scalar("eps")
        y, *_ = layer_norm(b, y, weight, shift, eps) if norm == "layernorm" else rms_norm(b, y, weight, eps)
    amax = b.op("row_max", b.op("abs", y), name="amax")
    ratio = b.op("div", amax, b.const(LARGEST[out]))
    scale = b.op("where", b.op("eq", ratio, b.const(0.0)), b.const(1.0), ratio, name="scale")
    # One reciprocal a row instead of a division an element.
    b.store("q", b.op("mul", y, b.op("reciprocal", scale), name="q"), out)
    return b.stored("scale", scale, DType.FP32)
