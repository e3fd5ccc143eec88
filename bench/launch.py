"""Launches one chosen kernel directly, past ComFuse's own choice of plan and past its binding.

For experiments and tests that force a plan; programs call ``comfuse.ops`` or ``comfuse.fuse``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from comfuse.errors import LaunchError
from comfuse.generator import plan
from comfuse.generator.errors import PlanError
from comfuse.generator.spec import FusedSpec
from comfuse.library import LoadedKernel, abi

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(abi.Args), ctypes.c_void_p, ctypes.c_void_p)


def label(shape: plan.TileShape | plan.KernelPlan) -> str:
    """Schedule and tile, e.g. ``"pingpong-128x128"``."""
    return f"{shape.schedule}-{shape.tile_m}x{shape.tile_n}"


#: Every schedule and tile that the planner knows.
SCHEDULES: tuple[str, ...] = tuple(dict.fromkeys(label(s) for s in plan.SHAPES))


def forced_plan(
    spec: FusedSpec, schedule: str, cluster_n: int | None = None, m: int | None = None
) -> plan.KernelPlan:
    """The planner's candidate of this schedule and tile; of several, the one with the largest cluster.

    Args:
        schedule: one of :data:`SCHEDULES`.

    Raises:
        PlanError: the planner refuses them all, for the reason it gives.
    """
    plans, reasons = [], []
    for candidate in plan.candidates(spec, "h200", m):
        shape = candidate.shape if isinstance(candidate, plan.Refusal) else candidate
        if label(shape) != schedule or cluster_n not in (None, shape.cluster_n):
            continue
        if isinstance(candidate, plan.Refusal):
            reasons.append(candidate.reason)
        else:
            plans.append(candidate)
    if not plans:
        raise PlanError(reasons[0] if reasons else f"{schedule} is none of {', '.join(SCHEDULES)}")
    return max(plans, key=lambda p: p.cluster_n)


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
