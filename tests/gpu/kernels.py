"""Builds the kernels of the collected cases, all of them in parallel, before the first test needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from bench.ahead import build_all
from bench.launch import forced_plan
from comfuse import library
from comfuse.generator import emit, plan
from comfuse.generator.errors import GeneratorError, PlanError
from comfuse.generator.spec import FusedSpec
from comfuse.library import LoadedKernel
from comfuse.ops.resolver import M_CLASSES
from tests.gpu.support import Case


def needed_by(items: Iterable[pytest.Item]) -> tuple[list[Case], list[FusedSpec]]:
    """The Cases among the tests' parameters, and what the ``specs_ahead`` of their modules name."""
    items = [i for i in items if isinstance(i, pytest.Function)]
    parameters = [p for i in items if hasattr(i, "callspec") for p in i.callspec.params.values()]
    modules = {i.module.__name__: i.module for i in items}
    ahead: list[FusedSpec] = []
    for name, module in modules.items():
        try:
            ahead += getattr(module, "specs_ahead", list)()
        except Exception as e:  # the module's own tests will fail of it; the others need their kernels
            print(f"{name}.specs_ahead: {type(e).__name__}: {e}")
    return [p for p in parameters if isinstance(p, Case)], ahead


def plan_of(case: Case) -> plan.KernelPlan:
    """The case's plan.  Raises PlanError where its schedule does not take the program."""
    if case.schedule is None:
        return plan.plan(case.spec)
    return forced_plan(case.spec, case.schedule, case.cluster_n)


class Kernels:
    """Kernels by case.  A refused plan skips the test that asks for it; a failed build fails it.

    ``ahead`` are specs whose planned kernels, for few rows and for many, are built too: the ops find them
    in the cache.
    """

    def __init__(self, cases: Iterable[Case], ahead: Iterable[FusedSpec], say: Callable[[str], None]) -> None:
        self._sources = {str(case): _source(lambda c=case: plan_of(c)) for case in cases}
        planned = [_source(lambda s=s, m=m: plan.plan(s, m=m)) for s in ahead for m in (*M_CLASSES, None)]
        sources = [s for s in (*self._sources.values(), *planned) if not isinstance(s, Exception)]
        self._built = build_all(sources, say)

    def __call__(self, case: Case) -> LoadedKernel:
        source = self._sources[str(case)]
        if isinstance(source, PlanError) and case.schedule is not None:
            pytest.skip(f"refused: {source}")
        if isinstance(source, GeneratorError):
            raise source
        built = self._built[source.name]
        if isinstance(built, Exception):
            raise built
        return library.load(built)


def _source(make_plan: Callable[[], plan.KernelPlan]) -> emit.KernelSource | GeneratorError:
    try:
        return emit.emit(make_plan())
    except GeneratorError as e:
        return e
