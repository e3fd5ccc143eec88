"""Plans in, callables out that time their kernels on the GPU.  Nothing is timed that was not checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from comfuse import fallbacks, library, ops, timing
from comfuse.build import packs
from comfuse.build.compile import toolchain
from comfuse.errors import BuildError, ComFuseError, LaunchError, WrongResultError
from comfuse.generator.emit import emit
from comfuse.generator.plan import KernelPlan
from comfuse.generator.spec import FusedSpec
from comfuse.library import LoadedKernel
from comfuse.library.manifest import device_code
from comfuse.library.rows import MAX_ROWS
from comfuse.ops import native, resolver
from comfuse.tune.problem import Checked, Launch, Problem
from comfuse.version import __version__

_WITHOUT_GPU = "choices are measured where they are used; without a GPU the cost model chooses"


@dataclass(frozen=True)
class Contender:
    """A plan whose results are right.

    Attributes:
        time: runs it and gives the microseconds of a launch.
        check: checks it again; raises WrongResultError.
    """

    plan: KernelPlan
    checked: Checked
    time: Callable[[], float]
    check: Callable[[], Checked]


@dataclass(frozen=True)
class Failure:
    """A plan that is not timed, and why.  ``wrong``: it ran, and its results were not right."""

    plan: KernelPlan
    reason: str
    wrong: bool = False


class Runner(Protocol):
    """What times plans: a GPU, or in tests something that knows the answer.

    Attributes:
        gpu: the planner's name of it.
        name: its own.
        device: where a problem's tensors have to be.
        device_code, made_with: as in :class:`comfuse.library.tuned.table.Entry`.
    """

    @property
    def gpu(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def device_code(self) -> str: ...
    @property
    def made_with(self) -> dict[str, str]: ...

    def build(self, plans: Sequence[KernelPlan]) -> None:
        """Compiles what is not compiled yet, all at once."""

    def prepare(self, problem: Problem, plan: KernelPlan) -> Contender | Failure:
        """Checks one plan's results.

        Raises:
            CacheError and its like: this machine can build nothing.
            LaunchError: the kernel ended this process's use of the GPU.
        """


class GpuRunner:
    """The current CUDA device."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        """``say`` gets a line about compiling now and then.

        Raises:
            DeviceError: there is no Hopper GPU.
            ToolchainError, JitDisabledError, BuildError, LoadError: the torch binding cannot be had.
        """
        index = resolver.current_gpu("tune", _WITHOUT_GPU)
        native.load()
        self._say = say
        self._outcomes: dict[str, packs.BuiltKernel | ComFuseError] = {}
        self.gpu = resolver.planner_gpu(index)
        self.name = torch.cuda.get_device_name(index)
        self.device = torch.device("cuda", index)
        self.device_code = device_code()
        toolkit, cutlass = toolchain()
        self.made_with = {
            "comfuse": __version__,
            "torch": torch.__version__,
            "nvcc": toolkit.version,
            "cutlass": cutlass.version,
        }

    def build(self, plans: Sequence[KernelPlan]) -> None:
        sources = [source for source in map(emit, plans) if source.name not in self._outcomes]
        self._outcomes |= packs.build_all(sources, say=self._say)

    def prepare(self, problem: Problem, plan: KernelPlan) -> Contender | Failure:
        source = emit(plan)
        self.build([plan])
        built = self._outcomes[source.name]
        if isinstance(built, BuildError):
            return Failure(plan, str(built))
        if isinstance(built, ComFuseError):  # the machine's fault: no other plan would do better
            raise built
        try:
            launch = _launch(problem, plan, library.load(built))
            before = _fallen_back()
            checked = problem.check(launch)
            if _fallen_back() != before:
                return Failure(plan, "its calls ran the reference instead: see comfuse.fallbacks")
            outputs = problem.outputs()
            captured = timing.capture(lambda: launch(outputs))
        except WrongResultError as e:
            return Failure(plan, str(e), wrong=True)
        except ComFuseError as e:
            return Failure(plan, str(e))
        except torch.cuda.OutOfMemoryError as e:
            return Failure(plan, f"out of memory: {e}")
        except RuntimeError as e:  # the CUDA context is lost, and no kernel will run in this process
            raise LaunchError(f"{source.name} ({plan.label}) ends this process's use of the GPU: {e}") from e
        return Contender(plan, checked, lambda: timing.sample(captured), lambda: problem.check(launch))


def _launch(problem: Problem, plan: KernelPlan, kernel: LoadedKernel) -> Launch:
    """Calls of the op that run this plan's kernel: its spec has a text of its own."""
    text = _named(problem.spec, plan).text()
    native.register_program(text)
    native.register(text, kernel, 1, MAX_ROWS)
    b, operands = problem.b[0], [*problem.b[1:], *problem.operands]
    return lambda out: ops.region_out(text, problem.a, b, operands, problem.scalars, list(out))


def _named(spec: FusedSpec, plan: KernelPlan) -> FusedSpec:
    """The same program, with the plan in an output's name."""
    first, *rest = spec.outputs
    name = f"{first.name}_{plan.label.replace('-', '_')}"
    return replace(spec, outputs=(replace(first, name=name), *rest))


def _fallen_back() -> dict[tuple[str, str], int]:
    """What was counted so far, without copies of arguments, which cost every plan the same."""
    copies = native.copies()
    return {key: count for key, count in fallbacks.counts().items() if key not in copies}
