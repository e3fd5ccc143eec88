"""Launches one chosen kernel directly, past ComFuse's own choice of plan and past its binding.

For experiments and tests that force a plan; programs call ``comfuse.ops`` or ``comfuse.fuse``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from comfuse.errors import LaunchError
from comfuse.generator import plan
from comfuse.generator.errors import PlanError
from comfuse.generator.spec import FusedSpec
from comfuse.library import LoadedKernel, abi

if TYPE_CHECKING:
    from torch import Tensor

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(abi.Args), ctypes.c_void_p, ctypes.c_void_p)


def forced_plan(
    spec: FusedSpec, schedule: str, tile_n: int, cluster_n: int | None = None, m: int | None = None
) -> Any:
    """The planner's candidate of this schedule and tile; of several, the one with the largest cluster.

    Raises:
        PlanError: the planner refuses them all, for the reason it gives.
    """
    candidates = plan.candidates(spec, "h200", m)
    accepted = [
        c for c in candidates if isinstance(c, plan.KernelPlan) and _is(c, schedule, tile_n, cluster_n)
    ]
    if accepted:
        return max(accepted, key=lambda c: c.cluster_n)
    refusals = [c for c in candidates if not isinstance(c, plan.KernelPlan)]
    reasons = [c.reason for c in refusals if _is(c, schedule, tile_n, cluster_n)]
    raise PlanError(reasons[0] if reasons else f"no candidate is {schedule} with a 128x{tile_n} tile")


def _is(candidate: Any, schedule: str, tile_n: int, cluster_n: int | None) -> bool:
    return (candidate.schedule, candidate.tile_n) == (schedule, tile_n) and cluster_n in (
        None,
        candidate.cluster_n,
    )


def prepare(
    kernel: LoadedKernel,
    a: Tensor,
    b: Tensor,
    operands: Sequence[Tensor],
    outputs: Sequence[Tensor],
    scalars: Sequence[float] = (),
) -> Callable[[], None]:
    """A call that launches the kernel on the current stream, with a workspace of its own.

    ``a`` (M, K), ``b`` (N, K); tiles (M, N) and vectors, each with its own stride; ``operands`` leaves the
    run-time scalars out.  Nothing is checked but what the kernel itself checks.

    Raises (when called):
        LaunchError: the kernel's return code, in words.
    """
    import torch

    arguments = abi.Args(abi_version=abi.ABI_VERSION, m=a.shape[0], k=a.shape[1])
    arguments.a, arguments.b = _tensor(a), _tensor(b)
    for i, t in enumerate(operands):
        arguments.operands[i] = _tensor(t)
    for i, t in enumerate(outputs):
        arguments.outputs[i] = _tensor(t)
    for i, s in enumerate(scalars):
        arguments.scalars[i] = s
    workspace = torch.zeros(max(1, kernel.workspace_bytes(a.shape[0])), dtype=torch.int8, device=a.device)
    launch = _LAUNCH(kernel.launch)
    held = (a, b, *operands, *outputs)  # their memory is used as long as the call can be made

    def call() -> None:
        stream = torch.cuda.current_stream(held[0].device).cuda_stream
        code = launch(ctypes.byref(arguments), workspace.data_ptr(), stream)
        if code:
            raise LaunchError(f"{kernel.name}: {abi.describe(code)}")

    return call


def _tensor(t: Tensor) -> abi.Tensor:
    return abi.Tensor(t.data_ptr(), t.stride(0))
