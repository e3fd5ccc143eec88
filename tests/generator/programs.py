"""The programs of the golden files: name -> spec."""

from __future__ import annotations

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Space

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
}
