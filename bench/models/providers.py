"""Who runs a model: each provider compiles a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench.models.step import Call
from comfuse.inductor.entrances import backend

_MAX = "max-autotune-no-cudagraphs"  # every provider is timed under a CUDA graph of the bench's own


@dataclass(frozen=True)
class Provider:
    """``baseline`` providers compete for the best Inductor time, those that are ``ours`` for ComFuse's."""

    name: str
    title: str
    compile: Callable[[nn.Module], Call]
    baseline: bool = False
    ours: bool = False


def _compiled(**options: Any) -> Callable[[nn.Module], Call]:
    def compile_module(module: nn.Module) -> Call:
        torch._dynamo.reset()
        return torch.compile(module, dynamic=False, fullgraph=True, **options)

    return compile_module


# The backend as a function: its name is known to torch only where the package is installed.
_ALL = (
    Provider("eager", "eager", lambda module: module),
    Provider("inductor", "Inductor default", _compiled(), baseline=True),
    Provider("inductor-max", "Inductor max-autotune", _compiled(mode=_MAX), baseline=True),
    Provider("comfuse", "ComFuse", _compiled(backend=backend), ours=True),
    Provider("comfuse-max", "ComFuse max-autotune", _compiled(backend=backend, mode=_MAX), ours=True),
)
PROVIDERS = {p.name: p for p in _ALL}


def select(names: Iterable[str]) -> tuple[Provider, ...]:
    """The providers of these names, baselines before ours: what is allowed depends on their errors.

    Raises:
        ValueError: there is no provider of a name.
    """
    wanted = set(names)
    unknown = sorted(wanted - set(PROVIDERS))
    if unknown:
        raise ValueError(f"no provider {unknown[0]!r}; there are {', '.join(PROVIDERS)}")
    return tuple(p for p in _ALL if p.name in wanted)
