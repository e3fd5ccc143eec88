"""Classes of numbers of rows: each has a kernel of its own, planned for its upper bound."""

from __future__ import annotations

from comfuse.errors import PlanError
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import row_limits
from comfuse.generator.spec import FusedSpec

M_CLASSES = (128, 512, 2048)
MAX_ROWS = 2**31 - 1


def m_class(rows: int, classes: tuple[int, ...] = M_CLASSES) -> int | None:
    """The number of rows to plan for when there are ``rows``; None: many."""
    return next((bound for bound in classes if rows <= bound), None)


def classes_on(spec: FusedSpec | ChainSpec, gpu: str) -> tuple[int, ...]:
    """The upper bounds of a program's classes of rows on a GPU, named as the planner names it.

    Where tile shapes can run only so many rows, their limits are bounds too, and the largest is the last.
    """
    limits = _limits(spec, gpu)
    return tuple(sorted({*(b for b in M_CLASSES if b < max(limits)), *limits})) if limits else M_CLASSES


def served(hint: int | None, classes: tuple[int, ...]) -> tuple[int, int]:
    """The smallest and the largest number of rows of a class."""
    if hint is None:
        return classes[-1] + 1, MAX_ROWS
    index = classes.index(hint)
    return (classes[index - 1] + 1 if index else 1), hint


def hints(spec: FusedSpec | ChainSpec, gpu: str) -> tuple[int | None, ...]:
    """All classes of a program, by their upper bounds; None: as many rows as there are."""
    classes = classes_on(spec, gpu)
    return classes if _limits(spec, gpu) else (*classes, None)


def _limits(spec: FusedSpec | ChainSpec, gpu: str) -> tuple[int, ...]:
    if isinstance(spec, ChainSpec):  # its tiles wait for no others
        return ()
    try:
        return row_limits(spec, gpu)
    except PlanError:  # whatever the number of rows, as the class's own plan says
        return ()
