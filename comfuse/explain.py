"""What becomes of a program: its phases, its kernel, where values live, and the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from comfuse import fallbacks
from comfuse.errors import ComFuseError
from comfuse.frontend import TraceError, trace_region, unfused
from comfuse.generator.emit import describe, emit
from comfuse.generator.errors import PlanError
from comfuse.generator.phases import Phase
from comfuse.generator.plan import GPUS, SCHEDULES, KernelPlan, Refusal, candidates, plan
from comfuse.generator.spec import FusedSpec, Space


@dataclass(frozen=True)
class Explanation:
    """The answer of :func:`explain`; ``str()`` of it is for people.

    Attributes:
        title: what was asked about.
        m: the number of rows it was planned for; None: many.
        spec: the program, or None if it was not traced.
        kernel: the name of the kernel, or None if there is none.
        plan: how it runs, or None if it does not.
        refused: why it is not fused; empty if it is.
        considered: every tile shape, as a plan or with the reason against it.
        fallbacks: what ran unfused in this process so far, with the number of times.
    """

    title: str
    m: int | None
    spec: FusedSpec | None = None
    kernel: str | None = None
    plan: KernelPlan | None = None
    refused: str = ""
    considered: tuple[KernelPlan | Refusal, ...] = ()
    fallbacks: dict[tuple[str, str], int] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(_text(self))


def explain(program: Callable[..., Any] | FusedSpec, *example_inputs: Any, gpu: str = "h200") -> Explanation:
    """Says whether a program is one fused kernel, which one, and why.  Starts no compiler and no CUDA.

    Args:
        program: a function, with example inputs as for :func:`comfuse.trace`; or a spec, with the number of
            rows as the only input or without any.
        gpu: the GPU to plan for.

    Raises:
        ArgumentError, DeviceError: an input that cannot be traced.  A program that cannot be fused does not
        raise: the explanation says why.
    """
    if isinstance(program, FusedSpec):
        m = example_inputs[0] if example_inputs else None
        return _explain_spec("a spec", program, m, gpu)
    program = unfused(program)
    title = getattr(program, "__name__", type(program).__name__)
    try:
        region = trace_region(program, example_inputs)
    except TraceError as e:
        return Explanation(title, None, refused=str(e), fallbacks=fallbacks.counts())
    title += f"({', '.join(region.names)})"
    if not region.any_rows:
        title += ", which reads its number of rows: traced for these shapes alone"
    return _explain_spec(title, region.spec, math.prod(region.lead), gpu)


def _explain_spec(title: str, spec: FusedSpec, m: int | None, gpu: str) -> Explanation:
    counts = fallbacks.counts()
    try:
        considered = candidates(spec, gpu, m)
        chosen = plan(spec, gpu, m)
    except PlanError as e:
        return Explanation(
            title, m, spec, refused=str(e), considered=_considered(spec, gpu, m), fallbacks=counts
        )
    return Explanation(title, m, spec, emit(chosen).name, chosen, "", considered, counts)


def _considered(spec: FusedSpec, gpu: str, m: int | None) -> tuple[KernelPlan | Refusal, ...]:
    try:
        return candidates(spec, gpu, m)
    except ComFuseError:  # the program as a whole is refused, which is said already
        return ()


# --- for people -----------------------------------------------------------------------------------------


def _text(e: Explanation) -> list[str]:
    lines = [e.title]
    if e.spec is not None:
        rows = "any M" if e.m is None else f"M = {e.m}"
        lines += [f"  {rows}, N = {e.spec.n}, K = {e.spec.k}, {e.spec.dtype.value}", ""]
        lines += [f"  {line}" for line in describe(e.spec if e.plan is None else e.plan.spec)]
        lines += ["", "operands", *_operands(e.spec)]
    if e.refused:
        lines += ["", f"not fused: {e.refused}"]
    if e.plan is not None:
        lines += ["", "phases", *_phases(e.plan), "", f"kernel for {e.plan.gpu}", *_kernel(e)]
    others = [c for c in e.considered if c != e.plan]
    if others:
        lines += ["", "other tile shapes", *(f"  {_label(c)}" for c in others)]
    if e.fallbacks:
        lines += ["", "not fused in this process so far"]
        lines += [f"  {count} x {where}: {reason}" for (where, reason), count in e.fallbacks.items()]
    return lines


def _operands(spec: FusedSpec) -> list[str]:
    shapes = {
        Space.TILE: "(M, N)",
        Space.ROW: "(N,)",
        Space.COLUMN: "(M,)",
        Space.SCALAR: "a run-time scalar",
    }
    lines = [f"  {o.name}: {shapes[o.space]} {o.dtype.value}" for o in spec.operands]
    return lines or ["  none"]


def _phases(chosen: KernelPlan) -> list[str]:
    lines = []
    for number, phase in enumerate(chosen.program.phases):
        lines.append(f"  {number}  {phase.cost:.0f} issue slots an element")
        lines += [f"     {line}" for line in _phase(chosen.program.spec, phase)]
    return lines


def _phase(spec: FusedSpec, phase: Phase) -> list[str]:
    def names(nodes: tuple[int, ...]) -> str:
        return ", ".join(spec.nodes[i].name for i in nodes)

    said = [f"accumulators hold {spec.nodes[phase.content].name}"]
    if phase.tiles:
        said.append(f"streams {', '.join(spec.operands[i].name for i in phase.tiles)} through shared memory")
    if phase.columns:
        said.append(f"per row, in registers: {names(phase.columns)}")
    if phase.lets:
        said.append(f"per element, once: {names(phase.lets)}")
    if phase.keep is not None:
        said.append(f"keeps {spec.nodes[phase.keep].name} in the accumulators")
    for r in phase.reductions:
        said.append(f"reduces {spec.nodes[spec.nodes[r].inputs[0]].name} by {spec.nodes[r].op}")
    if phase.stores:
        said.append(f"stores {', '.join(spec.outputs[i].name for i in phase.stores)}")
    return said


def _kernel(e: Explanation) -> list[str]:
    p = e.plan
    assert p is not None
    rows = [
        ("name", e.kernel),
        ("tile", f"{p.tile_m} x {p.tile_n} x {p.tile_k}, {p.schedule}, cluster 1 x {p.cluster_n}"),
        ("pipeline", f"{p.stages} stages for A and B, {p.tile_slots} slots for tile operands"),
        ("reductions", _SCOPES[p.scope]),
        ("registers", f"about {p.registers} a thread of {SCHEDULES[p.schedule].registers}"),
        ("shared", f"{p.shared_bytes} bytes of {GPUS[p.gpu].shared_bytes}"),
        (
            "time",
            f"predicted {p.predicted_us:.1f} us (a model, not a measurement), floor {p.floor_us:.1f} us",
        ),
    ]
    return [f"  {name:<11}{value}" for name, value in rows] + [f"  {'':<11}{d}" for d in p.decisions]


_SCOPES = {
    "none": "none",
    "tile": "within a tile, which holds whole rows",
    "row_group": "between the tiles of a row block, through a workspace in L2",
}


def _label(c: KernelPlan | Refusal) -> str:
    if isinstance(c, Refusal):
        return f"{c.shape.label}: {c.reason}"
    label = f"{c.schedule} {c.tile_m}x{c.tile_n}x{c.tile_k}, cluster 1x{c.cluster_n}"
    return f"{label}: predicted {c.predicted_us:.1f} us"
