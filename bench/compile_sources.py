"""Which kernels `python -m bench.compile_time` builds: of families, catalogues, models, or of files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import attention, providers, training, workloads
from bench.ahead import sources_of
from comfuse.build import Source
from comfuse.errors import CatalogueError
from comfuse.generator.emit import emit, emit_chain
from comfuse.generator.plan import KernelPlan
from comfuse.generator.plan.chain import ChainPlan
from comfuse.library import builder, catalogue

GOAL_SECONDS = 10.0  # of a cold build on two processors
GOAL_SECONDS_OF_LAYERS = 12.0  # of two layers and more

_NAME = re.compile(r"^COMFUSE_EXPORT\((\w+), ", re.MULTILINE)
_CHAIN = "_chain_"  # in the names of kernels of several layers


@dataclass(frozen=True)
class File:
    """An emitted kernel that lies in a file."""

    name: str
    text: str
    plan: Any = None


def families() -> tuple[str, ...]:
    """The names that stand for kernels of the benches."""
    return (*workloads.FAMILIES, *_CASES)


def kernels(what: str) -> list[Source]:
    """The kernels of a name, each once.

    Args:
        what: one of :func:`families`; a step of a model, such as ``bert_large-training``; a catalogue that is
            shipped, or the path of one; or the path of an emitted ``.cu``.

    Raises:
        ValueError: it is none of these, or a file that holds no kernel.
    """
    if what in workloads.FAMILIES:
        found: Sequence[Source] = sources_of([providers.PROVIDERS["comfuse"]], workloads.select(what))
    elif what in _CASES:
        found = _CASES[what]()
    elif what.endswith(".cu"):
        found = [_file(Path(what))]
    elif what in catalogue.shipped() or what.endswith(".toml"):
        try:
            found = builder.sources([catalogue.read(what)])
        except CatalogueError as e:
            raise ValueError(str(e)) from e
    else:
        found = _of_model(what)
    return list({source.name: source for source in found}.values())


def goal_seconds(kernel: str) -> float:
    """What a cold build of the kernel of this name may take."""
    return GOAL_SECONDS_OF_LAYERS if _CHAIN in kernel else GOAL_SECONDS


def _file(path: Path) -> File:
    try:
        text = path.read_text()
    except OSError as e:
        raise ValueError(f"{path} cannot be read: {e}") from e
    name = _NAME.search(text)
    if name is None:
        raise ValueError(f"{path} is no emitted kernel: nothing in it is exported by COMFUSE_EXPORT")
    return File(name[1], text)


def _of_model(what: str) -> list[Source]:
    from bench.models import ahead, explain  # needs transformers, which nothing else here does

    try:
        chosen = explain.steps([what])
    except ValueError as e:
        known = ", ".join((*families(), *catalogue.shipped()))
        raise ValueError(f"{what!r} is no .cu, no .toml, and none of {known}; {e}") from e
    return list(ahead.sources_of(chosen))


def _attention() -> list[Source]:
    """The plan that is chosen for each case."""
    plans = [min(attention.plans(case), key=_predicted) for case in attention.CASES]
    return [emit_chain(plan) for plan in plans]


def _middle_gradients() -> list[Source]:
    return [emit(min(training.plans(case), key=_predicted)) for case in training.CASES]


def _predicted(plan: ChainPlan | KernelPlan) -> float:
    return plan.predicted_us


_CASES: dict[str, Callable[[], list[Source]]] = {
    "attention": _attention,
    "middle-gradient": _middle_gradients,
}
