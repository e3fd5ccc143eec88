"""Plans that were chosen by measurement where there is one, else by the cost model.

``comfuse tune`` measures (:mod:`comfuse.tune`); here is what everything that builds and runs kernels asks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import overload

from comfuse.errors import ArgumentError, PlanError
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import Gpu, KernelPlan, force, shapes, shapes_to_measure
from comfuse.generator.plan import plan as plan_by_model
from comfuse.generator.plan.chain import ChainPlan
from comfuse.generator.plan.gpus import find
from comfuse.generator.spec import FusedSpec
from comfuse.library import manifest
from comfuse.library.tuned import lookup
from comfuse.library.tuned.table import Entry

__all__ = ["is_measured", "plan", "plan_of"]

_MEASURED = "chosen by measurement"


@overload
def plan(spec: FusedSpec, gpu: str | Gpu = ..., m: int | None = ...) -> KernelPlan: ...
@overload
def plan(spec: ChainSpec, gpu: str | Gpu = ..., m: int | None = ...) -> ChainPlan: ...
@overload
def plan(
    spec: FusedSpec | ChainSpec, gpu: str | Gpu = ..., m: int | None = ...
) -> KernelPlan | ChainPlan: ...
def plan(
    spec: FusedSpec | ChainSpec, gpu: str | Gpu = "h200", m: int | None = None
) -> KernelPlan | ChainPlan:
    """The fastest kernel for a program: what was measured to be, or by the cost model.

    The last of its decisions says which.  A measured choice that the planner refuses now is passed over; that
    is logged once and counted (:func:`comfuse.library.tuned.lookup.refusals`).

    Args:
        spec: any valid spec, or a chain, of which none are measured.
        gpu: as for :func:`comfuse.generator.plan.plan`.
        m: the number of rows, of all batches together; None: many.

    Raises:
        ArgumentError: it is no spec.
        SpecError, PlanError: as :func:`comfuse.generator.plan.plan`.
        TableError: a table is damaged, or ``COMFUSE_TUNED`` names what is not there.
    """
    if isinstance(spec, ChainSpec):
        return plan_by_model(spec, gpu, m)
    if not isinstance(spec, FusedSpec):
        raise ArgumentError("plan", "spec", f"a {type(spec).__name__}", "what comfuse.trace gives")
    for path, entry in lookup.entries(spec, find(gpu).name, m):
        try:
            chosen = plan_of(entry, spec, gpu, m)
        except PlanError as e:
            lookup.stale(path, f"{entry.label}, {entry.best.label}: {e}")
            continue
        return _decided(chosen, _said(path, entry))
    return _decided(plan_by_model(spec, gpu, m), "chosen by the cost model")


def plan_of(entry: Entry, spec: FusedSpec, gpu: str | Gpu, m: int | None) -> KernelPlan:
    """The plan that an entry names, for a program of its signature and the entry's GPU.

    Raises:
        PlanError: the planner has none of this name, or refuses it.
    """
    best = entry.best
    known = {shape.name: shape for shape in (*shapes(spec), *shapes_to_measure(spec))}
    if best.shape not in known:
        raise PlanError(f"{best.shape} is none of the planner's: {', '.join(known)}")
    return force(spec, known[best.shape], gpu, m, best.stages)


def is_measured(chosen: KernelPlan | ChainPlan) -> bool:
    """Whether a plan of :func:`plan` was chosen by measurement."""
    return chosen.decisions[-1].startswith(_MEASURED)


def _decided(chosen: KernelPlan, why: str) -> KernelPlan:
    return replace(chosen, decisions=(*chosen.decisions, why))


def _said(path: Path, entry: Entry) -> str:
    said = [f"{_MEASURED}: {entry.best.us:.1f} us at M = {entry.m}"]
    if entry.second is not None:
        said.append(f"next {entry.second.label} {entry.second.us:.1f} us")
    said.append(f"error {entry.error:.1e} of {entry.allowed:.1e}")
    of_others = "" if entry.device_code == _device_code() else ", with other device code"
    return f"{', '.join(said)}; {entry.device}{of_others}, {path}"


@cache
def _device_code() -> str:
    return manifest.device_code()
