"""What is to be tuned, of a function, a model, a catalogue or a spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from comfuse import calibration
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

_CHAINS = "the cost model alone plans chains"


def of_function(function: Callable[..., Any], inputs: Sequence[Any], gpu: str) -> list[Target]:
    """The kernels of a function of tensors, for the rows of these inputs.

    Raises:
        ArgumentError, TraceError, PlanError: it cannot be traced, or is no program of one GEMM that kernels
            run.
    """
    region = trace_region(function, inputs)
    spec, rows = _of_one_gemm(region.spec), math.prod(region.lead)
    lead = tuple(region.lead) if spec.batched else (rows,)
    name = getattr(function, "__name__", "a function")
    found = steps(spec, calibration.gpu(gpu), rows)
    return [Target(label, one, lead) for label, one in _labelled(name, [step.spec for step in found])]


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
        label = " ".join(filter(None, (row.graph, row.module))) or verdict.anchor
        if verdict.chain:
            left_out.append(f"{label}: a chain with {', '.join(verdict.chain)}: {_CHAINS}")
            continue
        numbers = [m for _, m in verdict.kernels if m is not None]
        if len(numbers) < len(verdict.kernels):
            left_out.append(
                f"{label}: its number of rows is the symbol {verdict.shape[0]}: give a size that is fixed"
            )
            continue
        labelled = _labelled(label, [programs.parse(text).spec for text, _ in verdict.kernels])
        found += [Target(name, one, _lead(one, m)) for (name, one), m in zip(labelled, numbers, strict=True)]
    return _distinct(found, gpu), left_out


def of_catalogue(catalogue: Catalogue, gpu: str, rows: Sequence[int] = ()) -> tuple[list[Target], list[str]]:
    """The programs of a catalogue, and a line about each that is left out; see :func:`of_spec`.  What it says
    of rows holds if none are given.
    """
    found: list[Target] = []
    left_out: list[str] = []
    for entry in catalogue.entries:
        if isinstance(entry.spec, ChainSpec):
            left_out.append(f"{entry.label}: a chain: {_CHAINS}")
            continue
        wanted = rows or [_example(hint) for hint in entry.hints(gpu)]
        found += of_spec(entry.spec, gpu, wanted, entry.label)
    return _distinct(found, gpu), left_out


def of_spec(
    spec: FusedSpec | ChainSpec, gpu: str, rows: Sequence[int] = (), label: str = "a spec"
) -> list[Target]:
    """A program at these numbers of rows; without any, at the largest of each class, and 16384 for many.

    Raises:
        ArgumentError: it is a chain.
    """
    one = _of_one_gemm(spec)
    wanted = rows or [_example(hint) for hint in hints(one, gpu)]
    return [Target(label, one, _lead(one, m)) for m in wanted]


def _of_one_gemm(spec: FusedSpec | ChainSpec) -> FusedSpec:
    """Raises ArgumentError for a chain."""
    if isinstance(spec, ChainSpec):
        raise ArgumentError("tune", "spec", "a chain", "a program of one GEMM", _CHAINS)
    return spec


def _labelled(label: str, kernels: Sequence[FusedSpec | ChainSpec]) -> Iterator[tuple[str, FusedSpec]]:
    """The kernels of one region, with names."""
    for number, spec in enumerate(map(_of_one_gemm, kernels), 1):
        of_several = f", kernel {number} of {len(kernels)}" if len(kernels) > 1 else ""
        yield f"{label}{of_several} {spec.n}x{spec.k} {spec.dtype.value}", spec


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
