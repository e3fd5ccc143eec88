"""The ways in for users of ``torch.compile``.  Importing this module starts nothing of torch's compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from comfuse.inductor.policy import Policy


def options(
    *,
    force: bool = False,
    gpu: str | None = None,
    jit: str | None = None,
    mode: str | None = None,
    **inductor: Any,
) -> dict[str, Any]:
    """Options that put ComFuse into TorchInductor: ``torch.compile(model, options=comfuse.options())``.

    Args:
        force, gpu, jit: as in :class:`comfuse.inductor.policy.Policy`.
        mode: one of torch.compile's modes, which it does not take beside options.
        inductor: TorchInductor's own options.  Passes of the user's on the same hooks run first.
    """
    from torch._inductor import config, list_mode_options

    from comfuse.inductor.hook import hooks

    of_mode = list_mode_options(mode) if mode and mode != "default" else {}
    ours = hooks(lambda hook: inductor.get(hook, getattr(config, hook)), Policy(force, gpu, jit))
    return {**of_mode, **inductor, **ours}


class enable:  # a function to those who call it
    """Makes ``torch.compile`` fuse with ComFuse from now on, or in a ``with`` block.

    Holds for what this thread compiles, whatever its mode and options.  A backward pass is compiled when it
    first runs: keep it enabled until then.

    Args:
        force, gpu, jit: as in :class:`comfuse.inductor.policy.Policy`.
    """

    def __init__(self, *, force: bool = False, gpu: str | None = None, jit: str | None = None) -> None:
        from torch._inductor import config

        from comfuse.inductor.hook import hooks

        ours = hooks(lambda hook: getattr(config, hook), Policy(force, gpu, jit))
        self._before = {hook: getattr(config, hook) for hook in ours}
        for hook, users in ours.items():
            setattr(config, hook, users)

    def disable(self) -> None:
        """Puts back what was on TorchInductor's hooks before."""
        from torch._inductor import config

        for hook, users in self._before.items():
            setattr(config, hook, users)

    def __enter__(self) -> enable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """TorchInductor with ComFuse: ``torch.compile(model, backend="comfuse")``.

    The name is known where the package is installed; ``backend=comfuse.backend`` is the same without.

    Args:
        module, inputs: from TorchDynamo.
        mode: as for TorchInductor's own backend.
        options: TorchInductor's, and those of :func:`comfuse.options`.
    """
    given = options or {}
    if not _has_ours(given):
        given = _options(**given)
    return torch._TorchCompileInductorWrapper(mode, given, None)(module, inputs)


def _reset() -> None:
    """Drops the CUDA graphs of compiled models, as ``torch._dynamo.reset()`` has it."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None:
        trees.reset_cudagraph_trees()


backend.reset = _reset  # type: ignore[attr-defined]
_options = options  # which the argument of backend hides


def _has_ours(given: dict[str, Any]) -> bool:
    from comfuse.inductor.hook import FUSING, ComFusePass

    return isinstance(given.get(FUSING), ComFusePass)
