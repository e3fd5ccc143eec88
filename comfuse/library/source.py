"""From a program, a spec or a chain, to the source of its kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import Gpu
from comfuse.generator.spec import FusedSpec
from comfuse.library import tuned

if TYPE_CHECKING:
    from comfuse.generator.emit import KernelSource


def source_of(program: FusedSpec | ChainSpec, gpu: str | Gpu, rows: int | None) -> KernelSource:
    """The kernel for ``rows`` rows, None for many.  Raises SpecError and PlanError."""
    from comfuse.generator.emit import emit  # the template engine waits for the first build

    return emit(tuned.plan(program, gpu, rows))
