"""The emitter for any plan: of one GEMM with what follows it, or of a chain of them."""

from __future__ import annotations

from comfuse.generator.emit import emit as one_gemm
from comfuse.generator.emit.chain import emit_chain
from comfuse.generator.errors import ArgumentError
from comfuse.generator.plan import KernelPlan
from comfuse.generator.plan.chain import ChainPlan


def emit(plan: KernelPlan | ChainPlan) -> one_gemm.KernelSource:
    """The source of a planned kernel; equal plans give equal bytes.

    Raises:
        ArgumentError: it is no plan.
    """
    if not isinstance(plan, KernelPlan | ChainPlan):
        raise ArgumentError("emit", "plan", f"a {type(plan).__name__}", "what comfuse.plan gives")
    return emit_chain(plan) if isinstance(plan, ChainPlan) else one_gemm.emit(plan)
