"""How a program runs on one GPU: tile shape, schedule, shared memory, and why."""

from __future__ import annotations

from comfuse.generator.plan.choose import candidates_to_measure, force, pipelines, row_limits
from comfuse.generator.plan.gpus import GPUS, Gpu
from comfuse.generator.plan.kernel_plan import (
    SCHEDULES,
    SHAPES,
    SHAPES_ALONG_M,
    SHAPES_OF_TWO,
    SHAPES_OF_TWO_A,
    SHAPES_OF_TWO_A_ALONG_M,
    SHAPES_OF_TWO_ALONG_M,
    KernelPlan,
    Refusal,
    Schedule,
    TileShape,
    shapes,
    shapes_to_measure,
)
from comfuse.generator.plan.program import candidates, plan

__all__ = [
    "GPUS",
    "SCHEDULES",
    "SHAPES",
    "SHAPES_ALONG_M",
    "SHAPES_OF_TWO",
    "SHAPES_OF_TWO_A",
    "SHAPES_OF_TWO_ALONG_M",
    "SHAPES_OF_TWO_A_ALONG_M",
    "Gpu",
    "KernelPlan",
    "Refusal",
    "Schedule",
    "TileShape",
    "candidates",
    "candidates_to_measure",
    "force",
    "pipelines",
    "plan",
    "row_limits",
    "shapes",
    "shapes_to_measure",
]
