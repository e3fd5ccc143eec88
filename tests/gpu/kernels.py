"""The kernels of the collected cases: built in parallel before the first test needs one, or found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import pytest

from comfuse import library
from comfuse.build import build
from comfuse.generator import emit, plan
from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import GeneratorError, PlanError
from comfuse.generator.plan.chain import ChainPlan
from comfuse.generator.spec import FusedSpec
from comfuse.library import LoadedKernel, tuned
from comfuse.library.rows import hints

_MAX_M = 2**31 - 1
_GPU = "h200"
AnySpec = FusedSpec | ChainSpec
AnyPlan = plan.KernelPlan | ChainPlan


@runtime_checkable
class Planned(Protocol):
    """A case: something with a name and a plan of its own."""

    @property
    def may_be_refused(self) -> bool:
        """Whether a test of it is to be skipped where the planner refuses it."""
        ...

    def plan(self) -> AnyPlan:
        """Raises PlanError where its schedule does not take the program."""
        ...


def needed_by(items: Iterable[pytest.Item]) -> tuple[list[Planned], list[AnySpec]]:
    """The cases among the tests' parameters, and what the ``specs_ahead`` of their modules name."""
    items = [i for i in items if isinstance(i, pytest.Function)]
    parameters = [p for i in items if hasattr(i, "callspec") for p in i.callspec.params.values()]
    modules = {i.module.__name__: i.module for i in items}
    ahead: list[AnySpec] = []
    for name, module in modules.items():
        try:
            ahead += getattr(module, "specs_ahead", list)()
        except Exception as e:  # the module's own tests will fail of it; the others need their kernels
            print(f"{name}.specs_ahead: {type(e).__name__}: {e}")
    return list({str(p): p for p in parameters if isinstance(p, Planned)}.values()), ahead


def built_by_passes(items: Iterable[pytest.Item]) -> list[emit.KernelSource]:
    """What the ``sources_ahead`` of the tests' modules name: for those that build through comfuse.build."""
    modules = {i.module.__name__: i.module for i in items if isinstance(i, pytest.Function)}
    return [s for m in modules.values() if hasattr(m, "sources_ahead") for s in m.sources_ahead()]


def sources_of(cases: Iterable[Planned], ahead: Iterable[AnySpec]) -> list[emit.KernelSource]:
    """All sources that can be had.

    ``ahead`` are specs whose planned kernels, one for each class of rows, are built too: the ops' resolver
    finds them.
    """
    made = [_source(case.plan) for case in cases]
    made += [_source(lambda s=s, m=m: _planned(s, m)) for s in ahead for m in hints(s, _GPU)]
    return [source for source in made if not isinstance(source, Exception)]


class Kernels:
    """Kernels by case, and the ops' way to them."""

    def __init__(self) -> None:
        self._loaded: dict[str, LoadedKernel] = {}
        self._served: set[str] = set()

    def __call__(self, case: Planned) -> LoadedKernel:
        """The case's kernel.  A refused plan skips the test that asks for it; a failed build fails it."""
        if str(case) not in self._loaded:
            source = _source(case.plan)
            if isinstance(source, PlanError) and case.may_be_refused:
                pytest.skip(f"refused: {source}")
            if isinstance(source, GeneratorError):
                raise source
            self._loaded[str(case)] = library.load(build(source))
        return self._loaded[str(case)]

    def serve(self, case: Planned, text: str) -> LoadedKernel:
        """Has the op run the case's kernel for the spec of this text, whatever M is."""
        from comfuse.ops import native

        kernel = self(case)
        if text not in self._served:
            native.register_program(text)
            native.register(text, kernel, 1, _MAX_M)
            self._served.add(text)
        return kernel


def _planned(spec: AnySpec, m: int | None) -> AnyPlan:
    return tuned.plan(spec, _GPU, m)


def _source(make_plan: Callable[[], AnyPlan]) -> emit.KernelSource | GeneratorError:
    try:
        return emit.emit(make_plan())
    except GeneratorError as e:
        return e
