"""How a chain of GEMMs runs on one GPU: what stays on chip, and why, or why it is not one kernel."""

from __future__ import annotations

from comfuse.generator.plan.chain.choose import (
    MARGIN,
    chain_candidates,
    check_chain,
    force_chain,
    plan_chain,
)
from comfuse.generator.plan.chain.constraints import unsupported
from comfuse.generator.plan.chain.kernel import (
    CHAIN_SHAPES,
    ChainPlan,
    ChainRefusal,
    ChainShape,
    Weights,
)

__all__ = [
    "CHAIN_SHAPES",
    "MARGIN",
    "ChainPlan",
    "ChainRefusal",
    "ChainShape",
    "Weights",
    "chain_candidates",
    "check_chain",
    "force_chain",
    "plan_chain",
    "unsupported",
]
