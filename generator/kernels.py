"""Which kernels run a program: one, or its stages where none can or they are faster."""

from __future__ import annotations

import math
from functools import lru_cache

from comfuse.generator.errors import PlanError
from comfuse.generator.passes import normalize
from comfuse.generator.plan import Gpu, plan
from comfuse.generator.spec import FusedSpec
from comfuse.generator.stages import Stage, stages, whole


@lru_cache(maxsize=256)
def kernels(spec: FusedSpec, gpu: str | Gpu = "h200", m: int | None = None) -> tuple[Stage, ...]:
    """The kernels of a program, in the order in which they run.

    A program whose tiles read column reductions is one kernel for as many rows as the GPU can hold at once,
    if that is predicted to be the faster, and several for more, or where the number is not known.

    Args:
        spec: any valid spec.
        gpu: as for :func:`comfuse.generator.plan.plan`.
        m: the number of rows; None: it is not known.

    Raises:
        SpecError, PlanError: as :func:`comfuse.generator.stages.stages`.
    """
    cut = stages(spec)
    if len(cut) == 1:
        return cut
    one = (whole(normalize(spec)),)
    return one if _predicted_us(one, gpu, m) < _predicted_us(cut, gpu, m) else cut


def _predicted_us(found: tuple[Stage, ...], gpu: str | Gpu, m: int | None) -> float:
    """Infinite where the planner refuses one of them."""
    try:
        return sum(plan(stage.spec, gpu, m).predicted_us for stage in found)
    except PlanError:
        return math.inf
