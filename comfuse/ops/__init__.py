"""Fused ops for torch tensors: a GEMM and what follows it, as one kernel."""

from __future__ import annotations

from comfuse import settings
from comfuse.ops.layernorm import fused_gemm_layernorm
from comfuse.ops.linear import fused_gemm
from comfuse.ops.rmsnorm import fused_gemm_rmsnorm
from comfuse.ops.schema import region

settings.configure_logging()

__all__ = ["fused_gemm", "fused_gemm_layernorm", "fused_gemm_rmsnorm", "region"]
