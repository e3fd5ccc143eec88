"""Which kernels run a program: one wherever there is one, otherwise its stages."""

from __future__ import annotations

from functools import lru_cache

from comfuse.generator.errors import PlanError
from comfuse.generator.passes import normalize
from comfuse.generator.plan import plan
from comfuse.generator.spec import FusedSpec
from comfuse.generator.stages import Stage, stages, whole


@lru_cache(maxsize=256)
def kernels(spec: FusedSpec, gpu: str = "h200", m: int | None = None) -> tuple[Stage, ...]:
    """The kernels of a program, in the order in which they run.

    A program whose tiles read column reductions is one kernel for as many rows as the GPU can hold at once,
    and several for more, or where the number is not known.

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
    try:
        plan(spec, gpu, m)
    except PlanError:
        return cut
    return (whole(normalize(spec)),)
