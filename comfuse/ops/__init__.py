"""Fused ops for torch tensors: a GEMM and what follows it, or two of them, as one kernel."""

from __future__ import annotations

from comfuse import settings
from comfuse.ops.attention import fused_attention
from comfuse.ops.b2b import fused_b2b_gemm
from comfuse.ops.calls import region, region_out
from comfuse.ops.colsum import fused_gemm_colsum
from comfuse.ops.cross_entropy import fused_gemm_cross_entropy
from comfuse.ops.gated import fused_gated_gemm
from comfuse.ops.layernorm import fused_gemm_layernorm
from comfuse.ops.linear import fused_gemm
from comfuse.ops.mlp import fused_mlp
from comfuse.ops.quantize import fused_gemm_quantize
from comfuse.ops.rmsnorm import fused_gemm_rmsnorm
from comfuse.ops.softmax import fused_gemm_logsumexp, fused_gemm_softmax

settings.configure_logging()

__all__ = [
    "fused_attention",
    "fused_b2b_gemm",
    "fused_gated_gemm",
    "fused_gemm",
    "fused_gemm_colsum",
    "fused_gemm_cross_entropy",
    "fused_gemm_layernorm",
    "fused_gemm_logsumexp",
    "fused_gemm_quantize",
    "fused_gemm_rmsnorm",
    "fused_gemm_softmax",
    "fused_mlp",
    "region",
    "region_out",
]
