"""How a program runs on one GPU: tile shape, schedule, shared memory, and why."""

from __future__ import annotations

from comfuse.generator.plan.choose import force, pipelines, row_limits
from comfuse.generator.plan.gpus import GPUS, Gpu
from comfuse.generator.plan.kernel_plan import (
    SCHEDULES,
    SHAPES,
    SHAPES_OF_TWO,
    SHAPES_OF_TWO_A,
    KernelPlan,
    Refusal,
    Schedule,
    TileShape,
    shapes,
)
from comfuse.generator.plan.program import candidates, plan

__all__ = [
    "GPUS",
    "SCHEDULES",
    "SHAPES",
    "SHAPES_OF_TWO",
    "SHAPES_OF_TWO_A",
    "Gpu",
    "KernelPlan",
    "Refusal",
    "Schedule",
    "TileShape",
    "candidates",
    "force",
    "pipelines",
    "plan",
    "row_limits",
    "shapes",
]
