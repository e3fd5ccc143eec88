"""What is to be tuned, of a function, a model, a catalogue or a spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from comfuse.errors import ArgumentError, ComFuseError
from comfuse.frontend import trace_region
from comfuse.frontend.calls import steps
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan.cost import LARGE_M
from comfuse.generator.spec import FusedSpec
from comfuse.inductor.policy import Policy
from comfuse.inductor.report import explain_model
from comfuse.library.catalogue import Catalogue
from comfuse.library.rows import classes_on as classes
from comfuse.library.rows import hints, m_class
from comfuse.library.signature import signature
from comfuse.ops import programs
from comfuse.tune.tuner import Target


def of_function(function: Callable[..., Any], inputs: Sequence[Any], gpu: str) -> list[Target]:
    """The kernels of a function of tensors, for the rows of these inputs.

    Raises:
        ArgumentError, TraceError, PlanError: it cannot be traced, or is no program that kernels run.
    """
    region = trace_region(function, inputs)
    lead = tuple(region.lead) if region.spec.batched else (math.prod(region.lead),)
    return _of_region(getattr(function, "__name__", "a function"), region.spec, lead, gpu)


def of_model(
    module: nn.Module | Callable[..., Any], inputs: Sequence[Any], gpu: str, *, training: bool = False
) -> tuple[list[Target], list[str]]:
    """The kernels of what is fused of a model, as ``torch.compile`` takes it with ComFuse; and a line about
    each fused region that is left out.

    Raises:
        Whatever the model raises.
    """
    found: list[Target] = []
    left_out: list[str] = []
    for row in explain_model(module, *inputs, training=training, policy=Policy(gpu=gpu)).rows:
        verdict = row.verdict
        if not verdict.fused:
            continue
        label = " ".join(filter(None, (row.graph, row.module))) or verdict.anchor
        m, spec = verdict.shape[0], programs.parse(verdict.spec).spec
        if isinstance(m, str):
            left_out.append(f"{label}: its number of rows is the symbol {m}: give a size that is fixed")
        elif isinstance(spec, FusedSpec):
            found += _of_region(label, spec, _lead(spec, m), gpu)
    return _distinct(found, gpu), left_out


def of_catalogue(catalogue: Catalogue, gpu: str, rows: Sequence[int] = ()) -> list[Target]:
    """The programs of a catalogue; see :func:`of_spec`.  What it says of rows holds if none are given."""
    found: list[Target] = []
    for entry in catalogue.entries:
        wanted = rows or [_example(hint) for hint in entry.rows or hints(entry.spec, gpu)]
        found += of_spec(entry.spec, gpu, wanted, entry.label)
    return _distinct(found, gpu)


def of_spec(
    spec: FusedSpec | ChainSpec, gpu: str, rows: Sequence[int] = (), label: str = "a spec"
) -> list[Target]:
    """A program at these numbers of rows; without any, at the largest of each class, and 16384 for many.

    Raises:
        ArgumentError: it is a chain.
    """
    if isinstance(spec, ChainSpec):
        raise ArgumentError(
            "tune", "spec", "a chain", "a program of one GEMM", "the cost model alone plans chains"
        )
    wanted = rows or [_example(hint) for hint in hints(spec, gpu)]
    return [Target(label, spec, _lead(spec, m)) for m in wanted]


def _of_region(label: str, spec: FusedSpec, lead: tuple[int, ...], gpu: str) -> list[Target]:
    found = [step.spec for step in steps(spec, gpu, math.prod(lead))]
    names = [
        f"{label}, kernel {i} of {len(found)}" if len(found) > 1 else label for i in range(1, len(found) + 1)
    ]
    sizes = f"{spec.n}x{spec.k} {spec.dtype.value}"
    return [Target(f"{name} {sizes}", one, lead) for name, one in zip(names, found, strict=True)]


def _distinct(targets: Iterable[Target], gpu: str) -> list[Target]:
    """Those that have an entry of their own in a table."""
    found: dict[object, Target] = {}
    for target in targets:
        try:
            rows = m_class(target.m, classes(target.spec, gpu))
        except ComFuseError:  # which is said when it is tuned
            rows = target.m
        found.setdefault((signature(target.spec), rows), target)
    return list(found.values())


def _example(hint: int | None) -> int:
    return LARGE_M if hint is None else hint


def _lead(spec: FusedSpec, m: int) -> tuple[int, ...]:
    """Of a program of which only the number of rows is known: one batch."""
    return (1, m) if spec.batched else (m,)
