"""What becomes of a program: its phases, its kernels, where values live, and the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from comfuse import calibration, fallbacks
from comfuse.errors import ArgumentError, ComFuseError
from comfuse.frontend import TraceError, trace_region, unfused
from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit import emit
from comfuse.generator.errors import PlanError
from comfuse.generator.kernels import kernels
from comfuse.generator.plan import Gpu, KernelPlan, candidates
from comfuse.generator.plan.chain import ChainPlan
from comfuse.generator.plan.program import Considered
from comfuse.generator.spec import FusedSpec
from comfuse.library import tuned
from comfuse.ops.resolver import turned_off
from comfuse.plan_text import kernel_text, phases_text, program_text, shape_text

if TYPE_CHECKING:
    from comfuse.inductor.report import Report


Spec = FusedSpec | ChainSpec
Plan = KernelPlan | ChainPlan


@dataclass(frozen=True)
class Explanation:
    """The answer of :func:`explain`; ``str()`` of it is for people.

    Attributes:
        title: what was asked about.
        m: the number of rows it was planned for; None: many.
        spec: the program, or None if it was not traced.
        kernel: the name of the kernel, or None if there is none.
        plan: how it runs, or None if it does not.
        refused: why it is not one kernel; empty if it is.
        stages: the plans of the kernels that it can be cut into where one kernel is not enough; of a chain,
            one a link.
        notes: what each call does beside the kernels: copies and conversions of arguments.
        considered: every tile shape, as a plan or with the reason against it.
        fallbacks: what ran unfused in this process so far, with the number of times.
    """

    title: str
    m: int | None
    spec: Spec | None = None
    kernel: str | None = None
    plan: Plan | None = None
    refused: str = ""
    considered: Considered = ()
    stages: tuple[KernelPlan, ...] = ()
    fallbacks: dict[tuple[str, str], int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def kernels(self) -> tuple[tuple[str, int | None], ...]:
        """The programs of its kernels, each with the number of rows."""
        if self.plan is not None and self.spec is not None:
            return ((self.spec.text(), self.m),)
        return tuple((plan.spec.text(), self.m) for plan in self.stages)

    def __str__(self) -> str:
        return "\n".join(_text(self))


def explain(
    program: nn.Module | Callable[..., Any] | Spec,
    *example_inputs: Any,
    gpu: str | None = None,
    training: bool | None = None,
    measure: bool = False,
    **keywords: Any,
) -> Explanation | Report:
    """Says what is fused of a program, and why not the rest.  Starts no compiler and no CUDA by itself.

    A function, a spec or a chain is explained as one kernel, with its plan, in an :class:`Explanation`.  A
    module, or a function with ``training`` or ``measure``, is explained as ``torch.compile`` takes it with
    ComFuse: a :class:`~comfuse.inductor.report.Report` with a line for each GEMM.  For that it runs once.

    Args:
        program: a function, with example inputs as for :func:`comfuse.trace`; a spec or a chain, with the
            number of rows as the only input or without any; or a module.
        gpu: the GPU to plan for, with what was calibrated of it; by default ``"h200"``, for a module the
            current one where there is one.
        training: whether gradients are asked for, which makes backward graphs; by default not.
        measure: time each region of a module on a GPU, which compiles it.
        keywords: further arguments of a module, or of a function that is explained like one.

    Raises:
        ArgumentError, DeviceError: what is no program, an input that cannot be traced, or times that cannot
            be measured.  A program that cannot be fused does not raise: the explanation says why.
    """
    if not (callable(program) or isinstance(program, Spec)):
        allowed = "a function, a module, a spec or a chain"
        raise ArgumentError("explain", "program", f"of type {type(program).__name__}", allowed)
    is_model = isinstance(program, nn.Module) or training is not None or measure
    if is_model and not isinstance(program, Spec):
        from comfuse.inductor.policy import Policy
        from comfuse.inductor.report import explain_model

        policy = Policy(gpu=gpu)
        return explain_model(
            program, *example_inputs, training=bool(training), measure=measure, policy=policy, **keywords
        )
    if keywords:
        raise TypeError(f"explain() got unexpected keyword arguments {', '.join(keywords)}")
    target = calibration.gpu(gpu or "h200")
    if isinstance(program, Spec):
        m = example_inputs[0] if example_inputs else None
        title = "a chain" if isinstance(program, ChainSpec) else "a spec"
        return _explain_spec(title, program, m, target)
    program = unfused(program)
    title = getattr(program, "__name__", type(program).__name__)
    try:
        region = trace_region(program, example_inputs)
    except TraceError as e:
        return Explanation(title, None, refused=str(e), fallbacks=fallbacks.counts())
    title += f"({', '.join(region.names)})"
    if not region.any_rows:
        title += ", which reads its number of rows: traced for these shapes alone"
    return replace(_explain_spec(title, region.spec, math.prod(region.lead), target), notes=region.notes)


def _explain_spec(title: str, spec: Spec, m: int | None, gpu: Gpu) -> Explanation:
    counts = fallbacks.counts()
    try:
        considered, chosen = candidates(spec, gpu, m), tuned.plan(spec, gpu, m)
        refused = turned_off(spec)
    except PlanError as e:
        refused = str(e)
    if refused:
        return Explanation(
            title,
            m,
            spec,
            refused=refused,
            considered=_considered(spec, gpu, m),
            stages=_stages(spec, gpu, m),
            fallbacks=counts,
        )
    return Explanation(title, m, spec, emit(chosen).name, chosen, considered=considered, fallbacks=counts)


def _considered(spec: Spec, gpu: Gpu, m: int | None) -> Considered:
    try:
        return candidates(spec, gpu, m)
    except ComFuseError:  # the program as a whole is refused, which is said already
        return ()


def _stages(spec: Spec, gpu: Gpu, m: int | None) -> tuple[KernelPlan, ...]:
    try:
        if isinstance(spec, ChainSpec):
            parts = spec.links
        else:
            parts = tuple(stage.spec for stage in kernels(spec, gpu, m))
        return tuple(tuned.plan(part, gpu, m) for part in parts) if len(parts) > 1 else ()
    except ComFuseError:  # several kernels are no help either
        return ()


# --- for people -----------------------------------------------------------------------------------------


def _text(e: Explanation) -> list[str]:
    lines = [e.title]
    rows = "any M" if e.m is None else f"M = {e.m}"
    if e.spec is not None:
        lines += program_text(e.spec if e.plan is None else e.plan.spec, rows)
    if e.notes:
        lines += ["", "beside the kernels", *(f"  {note}" for note in e.notes)]
    if e.stages:
        lines += ["", f"{len(e.stages)} kernels, one after the other, not one: {e.refused}"]
    elif e.refused:
        lines += ["", f"not fused: {e.refused}"]
    if e.plan is not None:
        lines += _plan(e.plan, e.kernel)
    for number, stage in enumerate(e.stages, 1):
        lines += ["", f"kernel {number} of {len(e.stages)}", *program_text(stage.spec, rows), *_plan(stage)]
    others = [c for c in e.considered if e.plan is None or c.shape != e.plan.shape]
    if others:
        lines += ["", "other tile shapes", *(f"  {shape_text(c)}" for c in others)]
    if e.fallbacks:
        lines += ["", "not fused in this process so far"]
        lines += [f"  {count} x {where}: {reason}" for (where, reason), count in e.fallbacks.items()]
    return lines


def _plan(p: Plan, kernel: str | None = None) -> list[str]:
    name = kernel or emit(p).name
    return ["", "phases", *phases_text(p), "", _heading(p.gpu), *kernel_text(p, name)]


def _heading(gpu: str) -> str:
    found = calibration.read(gpu)
    return f"kernel for {gpu}" if found is None else f"kernel for {gpu}, as calibrated {found.date}"
