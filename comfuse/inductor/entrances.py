"""The ways in for users of ``torch.compile``.  Importing this module starts nothing of torch's compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from comfuse.inductor.policy import Policy

_HOOK = "post_grad_custom_pre_pass"


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
        inductor: TorchInductor's own options.  A pass of the user's on the same hook runs first.
    """
    from torch._inductor import config, list_mode_options

    from comfuse.inductor.hook import chained

    of_mode = list_mode_options(mode) if mode and mode != "default" else {}
    users = inductor.pop(_HOOK, config.post_grad_custom_pre_pass)
    return {**of_mode, **inductor, _HOOK: chained(users, Policy(force, gpu, jit))}


class enable:  # a function to those who call it
    """Makes ``torch.compile`` fuse with ComFuse from now on, or in a ``with`` block.

    Holds for what this thread compiles, whatever its mode and options.  A backward pass is compiled when it
    first runs: keep it enabled until then.

    Args:
        force, gpu, jit: as in :class:`comfuse.inductor.policy.Policy`.
    """

    def __init__(self, *, force: bool = False, gpu: str | None = None, jit: str | None = None) -> None:
        from torch._inductor import config

        from comfuse.inductor.hook import chained

        self._before = config.post_grad_custom_pre_pass
        config.post_grad_custom_pre_pass = chained(self._before, Policy(force, gpu, jit))

    def disable(self) -> None:
        """Puts back what was on TorchInductor's hook before."""
        from torch._inductor import config

        config.post_grad_custom_pre_pass = self._before

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
    if not _is_ours(given.get(_HOOK)):
        given = _options(**given)
    return torch._TorchCompileInductorWrapper(mode, given, None)(module, inputs)


def _reset() -> None:
    """Drops the CUDA graphs of compiled models, as ``torch._dynamo.reset()`` has it."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None:
        trees.reset_cudagraph_trees()


backend.reset = _reset  # type: ignore[attr-defined]
_options = options  # which the argument of backend hides


def _is_ours(users: Any) -> bool:
    from comfuse.inductor.hook import ComFusePass

    return isinstance(users, ComFusePass)
