"""The planner for any program: one GEMM with what follows it, or a chain of them."""

from __future__ import annotations

from typing import overload

from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import choose
from comfuse.generator.plan.chain import ChainPlan, ChainRefusal, chain_candidates, plan_chain
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.plan.kernel_plan import KernelPlan, Refusal
from comfuse.generator.spec import FusedSpec

Considered = tuple[KernelPlan | Refusal, ...] | tuple[ChainPlan | ChainRefusal, ...]


@overload
def plan(program: FusedSpec, gpu: str | Gpu = ..., m: int | None = ...) -> KernelPlan: ...
@overload
def plan(program: ChainSpec, gpu: str | Gpu = ..., m: int | None = ...) -> ChainPlan: ...
@overload
def plan(
    program: FusedSpec | ChainSpec, gpu: str | Gpu = ..., m: int | None = ...
) -> KernelPlan | ChainPlan: ...
def plan(
    program: FusedSpec | ChainSpec, gpu: str | Gpu = "h200", m: int | None = None
) -> KernelPlan | ChainPlan:
    """The fastest kernel, as :func:`comfuse.generator.plan.choose.plan` or
    :func:`comfuse.generator.plan.chain.plan_chain` gives it; raises what these raise.
    """
    return plan_chain(program, gpu, m) if isinstance(program, ChainSpec) else choose.plan(program, gpu, m)


@overload
def candidates(
    program: FusedSpec, gpu: str | Gpu = ..., m: int | None = ...
) -> tuple[KernelPlan | Refusal, ...]: ...
@overload
def candidates(program: FusedSpec | ChainSpec, gpu: str | Gpu = ..., m: int | None = ...) -> Considered: ...
def candidates(program: FusedSpec | ChainSpec, gpu: str | Gpu = "h200", m: int | None = None) -> Considered:
    """Every shape, as a plan or with the reason against it; raises as ``choose.candidates`` does."""
    if isinstance(program, ChainSpec):
        return chain_candidates(program, gpu, m)
    return choose.candidates(program, gpu, m)
