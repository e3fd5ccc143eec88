"""The programs of the golden files: name -> spec, and their plans."""

from __future__ import annotations

import math

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.plan import KernelPlan, TileShape, force, plan
from comfuse.generator.spec import DType, FusedSpec, Major, Space

BF16, FP16, FP32 = DType.BF16, DType.FP16, DType.FP32


def row_statistics(n: int, k: int, dtype: DType) -> FusedSpec:
    """Several outputs of both kinds: a scaled activation in two dtypes, its row's largest entry and mean."""
    b = SpecBuilder(n, k, dtype)
    scaled = b.op("mul", b.gemm(), b.load("row_scale", Space.COLUMN, FP32), name="scaled")
    y = b.op("silu", b.op("add", scaled, b.load("bias", Space.ROW, FP32)), name="y")
    b.output("y", y, dtype)
    b.output("y_wide", y, FP32)
    b.output("peak", b.op("row_max", b.op("abs", y), name="peak"), FP32)
    b.output("mean", b.op("mul", b.op("row_sum", y, name="total"), b.const(1.0 / n, "inverse_n")), FP32)
    return b.spec()


def cross_entropy(n: int, k: int, dtype: DType) -> FusedSpec:
    """The loss of each row against the class in ``target``, 0 where that is ``ignore_index``; and its lse."""
    b = SpecBuilder(n, k, dtype)
    logits = b.gemm(name="logits")
    target = b.load("target", Space.COLUMN, DType.INT64)
    ignore_index = b.load("ignore_index", Space.SCALAR)
    lse = b.field(b.op("row_softmax", logits, name="softmax"), "lse", name="lse")
    is_target = b.op("eq", b.column_index(), target)
    picked = b.op("row_sum", b.op("where", is_target, logits, b.const(0.0, "zero")), name="picked")
    counts = b.op("ne", target, ignore_index)
    b.output("loss", b.op("where", counts, b.op("sub", lse, picked), b.const(0.0)), FP32)
    b.output("lse", lse, FP32)
    return b.spec()


def gated(n: int, k: int, dtype: DType) -> FusedSpec:
    """SwiGLU of two projections of the same input."""
    b = SpecBuilder(n, k, dtype, products=2)
    b.output("y", b.op("mul", b.op("silu", b.gemm(0, "gate")), b.gemm(1, "up"), name="y"), dtype)
    return b.spec()


def head_rmsnorm(n: int, k: int, dtype: DType, head: int) -> FusedSpec:
    """RMSNorm of each head of a projection, and its scales."""
    b = SpecBuilder(n, k, dtype, group=head)
    x = b.gemm()
    weight, eps = b.load("weight", Space.ROW, dtype), b.load("eps", Space.SCALAR)
    mean_square = b.op("mul", b.op("group_sumsq", x, name="sumsq"), b.const(1.0 / head, "inverse_head"))
    rrms = b.op("rsqrt", b.op("add", mean_square, eps), name="rrms")
    b.output("y", b.op("mul", b.op("mul", x, rrms), weight, name="y"), dtype)
    b.output("rrms", rrms, FP32)
    return b.spec()


def layernorm_quantised(n: int, k: int, dtype: DType) -> FusedSpec:
    """LayerNorm, then fp8 with a scale a row: its largest entry comes to 448."""
    b = SpecBuilder(n, k, dtype)
    x = b.op("add", b.gemm(), b.load("residual", Space.TILE, dtype), name="x")
    weight, shift = b.load("ln_weight", Space.ROW, dtype), b.load("ln_bias", Space.ROW, dtype)
    eps = b.load("eps", Space.SCALAR)
    stats = b.op("row_welford", x, name="stats")
    rstd = b.op("rsqrt", b.op("add", b.field(stats, "var"), eps), name="rstd")
    x_hat = b.op("mul", b.op("sub", x, b.field(stats, "mean")), rstd)
    y = b.op("add", b.op("mul", x_hat, weight), shift, name="y")
    amax = b.op("row_max", b.op("abs", y), name="amax")
    b.output(
        "quantised", b.op("div", y, b.op("mul", amax, b.const(1.0 / 448.0, "step"), name="scale")), DType.E4M3
    )
    b.output("scale", b.op("mul", amax, b.const(1.0 / 448.0, "step")), FP32)
    return b.spec()


def gelu_backward(n: int, k: int, dtype: DType) -> FusedSpec:
    """The gradient of a linear layer's input, through a GELU, and its column sum, a bias's gradient."""
    b = SpecBuilder(n, k, dtype, b_major=Major.MN)
    dx = b.op("gelu_backward", b.gemm(name="dy"), b.load("x", Space.TILE, dtype), name="dx")
    b.output("dx", dx, dtype)
    b.output("dbias", b.op("col_sum", dx, name="dbias"), FP32)
    return b.spec()


def relu_sum(n: int, k: int, dtype: DType) -> FusedSpec:
    """One number; the product is never stored."""
    b = SpecBuilder(n, k, dtype)
    b.output("total", b.op("full_sum", b.op("relu", b.gemm()), name="total"), FP32)
    return b.spec()


def batch_norm(n: int, k: int, dtype: DType) -> FusedSpec:
    """BatchNorm in training: the batch's statistics normalise it, and are outputs."""
    b = SpecBuilder(n, k, dtype)
    x = b.op("add", b.gemm(), b.load("bias", Space.ROW, dtype), name="x")
    stats = b.op("col_welford", x, name="stats")
    mean, var = b.field(stats, "mean", name="mean"), b.field(stats, "var", name="var")
    rstd = b.op("rsqrt", b.op("add", var, b.load("eps", Space.SCALAR)), name="rstd")
    x_hat = b.op("mul", b.op("sub", x, mean), rstd)
    weight, shift = b.load("bn_weight", Space.ROW, dtype), b.load("bn_bias", Space.ROW, dtype)
    b.output("y", b.op("add", b.op("mul", x_hat, weight), shift, name="y"), dtype)
    b.output("mean", mean, FP32)
    b.output("rstd", rstd, FP32)
    return b.spec()


def attention_scores(n: int, k: int, dtype: DType) -> FusedSpec:
    """Batched softmax(q @ k.mT * scale), causal."""
    b = SpecBuilder(n, k, dtype, batched=True)
    scaled = b.op("mul", b.gemm(), b.load("scale", Space.SCALAR))
    seen = b.op("ge", b.row_index(), b.column_index())
    x = b.op("where", seen, scaled, b.const(-math.inf, "minus_infinity"), name="x")
    softmax = b.op("row_softmax", x, name="softmax")
    e = b.op("exp", b.op("sub", x, b.field(softmax, "max", name="peak")), name="e")
    b.output("p", b.op("div", e, b.field(softmax, "sumexp", name="total"), name="p"), dtype)
    return b.spec()


def column_major_weight(n: int, k: int, dtype: DType) -> FusedSpec:
    """A weight that is stored (K, N): no copy."""
    b = SpecBuilder(n, k, dtype, b_major=Major.MN)
    b.output("y", b.op("add", b.gemm(), b.load("bias", Space.ROW, dtype)), dtype)
    return b.spec()


def patch_embedding(n: int, k: int, dtype: DType) -> FusedSpec:
    """A projection with a position embedding that repeats from image to image."""
    b = SpecBuilder(n, k, dtype)
    x = b.op("add", b.gemm(), b.load("bias", Space.ROW, dtype))
    b.output("y", b.op("add", x, b.load("position", Space.TILE, dtype, strided=True)), dtype)
    return b.spec()


def qk_heads(n: int, k: int, dtype: DType, head: int) -> FusedSpec:
    """A projection, stored head by head."""
    b = SpecBuilder(n, k, dtype)
    b.output("q", b.op("add", b.gemm(), b.load("bias", Space.ROW, dtype)), dtype, heads=head)
    return b.spec()


GOLDEN: dict[str, FusedSpec] = {
    "gemm": catalog.linear(4096, 4096, BF16),
    "gemm_bias": catalog.linear(1024, 1024, BF16, bias=BF16),
    "gemm_bias_gelu": catalog.linear(3072, 768, FP16, bias=FP32, activation="gelu"),
    "layernorm": catalog.layernorm(1024, 1024, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16),
    "rmsnorm_residual_before": catalog.rmsnorm(2048, 2048, BF16, residual=BF16, rms_weight=BF16),
    "rmsnorm_residual_after": catalog.rmsnorm(
        4096, 4096, BF16, residual=BF16, rms_weight=BF16, residual_position="after"
    ),
    "softmax": catalog.softmax(2048, 512, BF16, mask=FP32),
    "gemma_block": catalog.gemma_block(2304, 2048, BF16),
    "llama_block": catalog.add_rmsnorm(4096, 4096, BF16, rms_weight=BF16),
    "logsumexp": catalog.logsumexp(8192, 1024, BF16),
    "row_statistics": row_statistics(200, 512, BF16),
    "cross_entropy": cross_entropy(32000, 4096, BF16),
    "gated_swiglu": gated(11008, 4096, BF16),
    "head_rmsnorm": head_rmsnorm(4096, 4096, BF16, 128),
    "layernorm_quantised": layernorm_quantised(4096, 4096, BF16),
    "gelu_backward": gelu_backward(4096, 1024, BF16),
    "relu_sum": relu_sum(8192, 1024, BF16),
    "attention_scores": attention_scores(2048, 128, BF16),
    "unaligned_n": catalog.layernorm(1001, 512, BF16, bias=BF16, residual=BF16),
    "middle_gradient": catalog.middle_gradient(512, 128, 256, BF16, b0=BF16, activation="silu", sums=True),
    "column_major_weight": column_major_weight(4096, 4096, BF16),
    "patch_embedding": patch_embedding(768, 768, BF16),
    "qk_heads": qk_heads(4096, 4096, BF16, 128),
    "batch_norm_resident": batch_norm(512, 512, BF16),
    "rmsnorm_along_m": catalog.rmsnorm(4096, 4096, BF16, residual=BF16, rms_weight=BF16),
}
# The number of rows to plan for, where a program is one kernel for so many only.
ROWS = {"batch_norm_resident": 4096}
# The tile shape, where the golden file is not of what the planner chooses.
ALONG_M = TileShape("cooperative", 128, 256, 1, cluster_m=2)
FORCED = {"rmsnorm_along_m": ALONG_M}


def golden_plan(name: str) -> KernelPlan:
    """The plan of a golden file."""
    spec, m = GOLDEN[name], ROWS.get(name)
    return force(spec, FORCED[name], m=m) if name in FORCED else plan(spec, m=m)
