"""Launches one chosen kernel directly, past ComFuse's own choice of plan and past its binding.

For experiments and tests that force a plan; programs call ``comfuse.ops`` or ``comfuse.fuse``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bench import layout
from comfuse.errors import LaunchError
from comfuse.generator import plan
from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import PlanError
from comfuse.generator.spec import FusedSpec, Space
from comfuse.library import LoadedKernel, abi

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(abi.Args), ctypes.c_void_p, ctypes.c_void_p)


def label(shape: plan.TileShape | plan.KernelPlan) -> str:
    """Schedule and tile, e.g. ``"pingpong-128x128"``."""
    return f"{shape.schedule}-{shape.tile_m}x{shape.tile_n}"


#: Every schedule and tile that the planner knows.
SCHEDULES: tuple[str, ...] = tuple(dict.fromkeys(label(s) for s in plan.SHAPES))
#: Every tile shape by name, first those that the cost model chooses among, then those with clusters along M.
SHAPES: dict[str, plan.TileShape] = {
    s.name: s for s in (*plan.SHAPES, *plan.SHAPES_OF_TWO, *plan.SHAPES_ALONG_M, *plan.SHAPES_OF_TWO_ALONG_M)
}


def forced_plan(
    spec: FusedSpec, schedule: str, cluster_n: int | None = None, m: int | None = None
) -> plan.KernelPlan:
    """The planner's candidate of this schedule and tile; of several, the one with the largest cluster.

    Args:
        schedule: one of :data:`SCHEDULES`; or a whole name of :data:`SHAPES`, such as
            ``"cooperative-128x256-m2"``, whose clusters extend along M.

    Raises:
        PlanError: the planner refuses them all, for the reason it gives.
    """
    if schedule in SHAPES:
        return plan.force(spec, SHAPES[schedule], m=m)
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
    spec: FusedSpec | ChainSpec,
    a: Tensor,
    b: Sequence[Tensor],
    operands: Sequence[Tensor],
    outputs: Sequence[Tensor],
    scalars: Sequence[float] = (),
) -> Callable[[], None]:
    """A call that launches the spec's kernel on the current stream, with a workspace of its own.

    ``a`` (..., K), ``b`` (N, K) for each product, both as the spec has them contiguous, of a chain link by
    link; the second product's own A, if it has one, before its B.  ``operands`` and ``outputs`` as
    ``comfuse.ops.region`` takes and gives them, the run-time scalars and further factors left out; batched,
    each with its batch or shared.  Nothing is checked but what the kernel itself checks.

    Raises:
        ValueError: a tensor cannot be walked with the strides that a kernel knows.

    Raises (when called):
        LaunchError: the kernel's return code, in words.
    """
    launch, workspace, arguments = raw_launch(kernel, spec, a, b, operands, outputs, scalars)
    held = (a, *b, *operands, *outputs)  # their memory is used as long as the call can be made

    def call() -> None:
        stream = torch.cuda.current_stream(held[0].device).cuda_stream
        code = launch(ctypes.byref(arguments), workspace.data_ptr(), stream)
        if code:
            raise LaunchError(f"{kernel.name}: {abi.describe(code)}")

    return call


def raw_launch(
    kernel: LoadedKernel,
    spec: FusedSpec | ChainSpec,
    a: Tensor,
    b: Sequence[Tensor],
    operands: Sequence[Tensor],
    outputs: Sequence[Tensor],
    scalars: Sequence[float] = (),
) -> tuple[Callable[..., int], Tensor, abi.Args]:
    """The parts of such a call: the kernel's launch function, its workspace, its arguments."""
    links = spec.links if isinstance(spec, ChainSpec) else (spec,)
    first, last = links[0], links[-1]
    batches = a.shape[0] if first.batched else 1
    m = a.shape[-2] if first.batched else a.numel() // a.shape[-1]
    arguments = abi.Args(abi_version=abi.ABI_VERSION, m=m, k=a.shape[-1], batches=batches)
    arguments.a = layout.factor(first, first.a_major, a)
    rest = list(b)
    if isinstance(spec, FusedSpec) and spec.second is not None:
        own = rest.pop(1)
        arguments.k1, arguments.a1 = own.shape[-1], layout.factor(spec, spec.second.a_major, own)
    factors = [(link, link.pair_of(product).b_major) for link in links for product in range(link.products)]
    for i, ((link, major), t) in enumerate(zip(factors, rest, strict=True)):
        arguments.b[i] = layout.factor(link, major, t)
    slots = [(link, o) for link in links for o in link.operands if o.space is not Space.SCALAR]
    for i, ((link, o), t) in enumerate(zip(slots, operands, strict=True)):
        arguments.operands[i] = layout.operand(link, o.space, t, m)
    for i, t in enumerate(outputs):
        arguments.outputs[i] = layout.output(last, i, t)
    for i, s in enumerate(scalars):
        arguments.scalars[i] = s
    size = max(1, kernel.workspace_bytes(m, batches))
    return _LAUNCH(kernel.launch), torch.zeros(size, dtype=torch.int8, device=a.device), arguments
