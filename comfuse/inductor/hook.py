"""The pass as TorchInductor calls it, and what its caches know it by."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from comfuse import settings
from comfuse.build.cache import hash_file, hash_text
from comfuse.build.compile import environment_flags
from comfuse.build.toolkit import CudaToolkit, Cutlass, find_cuda, find_cutlass, find_cxx
from comfuse.errors import CalibrationError, SettingError, TableError, ToolchainError
from comfuse.inductor import aot, choose, log
from comfuse.inductor.policy import Policy
from comfuse.inductor.run import report_bug, run
from comfuse.inductor.save import save_sums
from comfuse.library import lookup
from comfuse.library.tuned import lookup as tuned

# Passes of this kind also hear whether the graph is for inference; torch 2.11 has none.
_Aware: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)
FUSING, SAVING = "post_grad_custom_pre_pass", "joint_custom_post_pass"
_SOURCES = (".py", ".jinja", ".h", ".hpp", ".cpp")


@dataclass(frozen=True)
class ComFusePass(_Aware or CustomGraphPass):  # type: ignore[misc]
    """Fuses what pays in a graph of TorchInductor; for ``config.post_grad_custom_pre_pass``.

    Attributes:
        policy: what is fused.
        before: the user's own passes on this hook, which run first.
    """

    policy: Policy = field(default_factory=Policy)
    before: tuple[Callable[..., None], ...] = ()

    def __call__(self, graph: Graph, is_inference: bool = False) -> None:
        for users in self.before:
            if _Aware is not None and isinstance(users, _Aware):
                users(graph, is_inference)
            else:
                users(graph)
        verdicts = run(graph, self.policy)
        log.record(verdicts)
        aot.note(verdicts, choose.gpu_name(self.policy))

    def uuid(self) -> str | None:
        """Equal where the pass does the same to the same graph; None keeps TorchInductor from caching.

        It does so where a pass of the user's has none, where a graph may wait for kernels that are built in
        the background (from the cache it would wait for ever), and where what decides cannot be read: the
        pass says so, which from the cache it would not.

        What is in a cache may have been left for want of a kernel.  So it is not the same where there are
        other means to build one, nor where nothing may fall back.
        """
        others = [users.uuid() if isinstance(users, CustomGraphPass) else None for users in self.before]
        jit = self.policy.jit or settings.jit()
        if not all(others) or jit == "background":
            return None
        try:
            kernels = _built() if jit == "off" else _means()
            read = (repr(choose.planned_for(self.policy)), *tuned.identity(), *kernels)
        except (CalibrationError, SettingError, TableError):
            return None
        return hash_text(
            _sources(),
            self.policy.key(),
            torch.__version__,
            jit,
            *read,
            str(settings.chains()),
            str(settings.strict()),
            *map(repr, others),
        )


@dataclass(frozen=True)
class SavingPass(CustomGraphPass):
    """Decides what is saved for the backward pass (:mod:`.save`); for ``config.joint_custom_post_pass``.

    ``before``: the user's own passes on this hook, which run first.
    """

    before: tuple[Callable[..., None], ...] = ()

    def __call__(self, graph: Graph) -> None:
        for users in self.before:
            users(graph)
        try:
            save_sums(graph)
        except Exception as e:  # what is marked until then is right all the same
            report_bug(e, "what is saved for the backward pass", "\n".join(str(node) for node in graph.nodes))

    def uuid(self) -> str | None:
        """As :meth:`ComFusePass.uuid`."""
        others = [users.uuid() if isinstance(users, CustomGraphPass) else None for users in self.before]
        return hash_text(_sources(), *map(repr, others)) if all(others) else None


def hooks(given: Callable[[str], Any], policy: Policy) -> dict[str, CustomGraphPass]:
    """ComFuse's passes by the hooks of TorchInductor that they are for, behind what is given on those."""
    return {
        FUSING: ComFusePass(policy, _before(given(FUSING))),
        SAVING: SavingPass(_before(given(SAVING))),
    }


def _before(given: Any) -> tuple[Callable[..., None], ...]:
    """The user's passes of what is on a hook: nothing, a pass or several."""
    several = given if isinstance(given, list | tuple) else () if given is None else (given,)
    before: list[Callable[..., None]] = []
    for one in several:
        before += one.before if isinstance(one, ComFusePass | SavingPass) else (one,)
    return tuple(before)


@functools.cache
def _sources() -> str:
    """A hash over all that decides what is fused and what a fused kernel does."""
    root = Path(__file__).resolve().parents[1]
    files = [
        Path(folder, name)
        for folder, _, names in os.walk(root, followlinks=True)  # generator and csrc are links in a checkout
        for name in names
        if name.endswith(_SOURCES)
    ]
    return hash_text(*(f"{file.relative_to(root)} {hash_file(file)}" for file in sorted(files)))


def _means() -> list[str]:
    """What kernels are built with, and how; of what is missing, that it is."""
    flags = [*settings.nvcc_flags(), environment_flags(), str(settings.build_timeout())]
    return [_version(find_cuda), _version(find_cutlass), _version(find_cxx), *flags]


def _version(find: Callable[[], CudaToolkit | Cutlass | tuple[Path, str]]) -> str:
    try:
        found = find()
    except ToolchainError:
        return ""
    return found[1] if isinstance(found, tuple) else found.version


def _built() -> list[str]:
    """The kernels that can run where none are built."""
    cached = (folder.name for folder in (settings.cache_dir() / "kernels").glob("*"))
    return [*sorted(cached), *lookup.identity()]
