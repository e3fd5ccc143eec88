"""Whether a region becomes a fused kernel: faster by the model, and never where it was measured to be slower.

The decision depends on the region, its rows, TorchInductor's settings, the name of a GPU and what was
calibrated of it, and on no device: it is the same on a machine without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch.fx import Node

from comfuse import calibration
from comfuse.errors import PlanError
from comfuse.frontend import axes
from comfuse.frontend.calls import steps
from comfuse.frontend.source import location
from comfuse.generator.chain import ChainSpec
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.plan import Gpu, chain, plan
from comfuse.generator.spec import FusedSpec, Space
from comfuse.inductor.candidate import Found
from comfuse.inductor.estimate import Estimate, estimate
from comfuse.inductor.nodes import bytes_of, is_random, readers, source
from comfuse.inductor.policy import Policy
from comfuse.inductor.verdict import Verdict
from comfuse.ops import programs, resolver

MARGIN = 0.985  # of TorchInductor's time: what is predicted to gain less may as well lose
_ROWS = 4096  # to decide for where nothing is known of a symbolic number of rows


def verdict(found: Found, policy: Policy) -> Verdict:
    """Whether one region is fused.

    It is left to TorchInductor where no kernel can run it for some number of rows that may come, where the
    model predicts no gain, and where the bench of its class shows a loss.  With ``policy.force`` only the
    first counts.

    Raises:
        CalibrationError, TableError: what is known of the GPU, or was tuned for it, cannot be read.
    """
    refusal = _unsupported(found)
    if refusal:
        return _verdict(found, False, refusal)
    low = found.lowered
    try:
        times = _estimate(found, planned_for(policy))
    except PlanError as e:
        return _verdict(found, False, str(e))
    fused = "holds " + _contents(found)
    if policy.force:
        return _verdict(found, True, fused, times)
    if times.slower is not None:
        reason = f"ComFuse was slower than TorchInductor in the bench of such a region, {times.slower}"
        return _verdict(found, False, reason, times)
    is_chain = len(low.links) > 1
    if times.fused_us >= (chain.MARGIN if is_chain else MARGIN) * times.unfused_us:
        where = "apart" if is_chain else "in TorchInductor"
        reason = f"predicted to take {times.fused_us:.1f} us, and {times.unfused_us:.1f} us {where}"
        return _verdict(found, False, reason, times)
    return _verdict(found, True, fused, times)


def gpu_name(policy: Policy) -> str:
    """The planner's name of the GPU to decide for."""
    if policy.gpu is not None:
        return policy.gpu
    if torch.cuda.is_available() and not resolver.unsupported_gpu(torch.cuda.current_device()):
        return resolver.planner_gpu(torch.cuda.current_device())
    return "h200"


def planned_for(policy: Policy) -> Gpu:
    """The GPU to decide for, with what was measured of it.  Raises CalibrationError."""
    return calibration.gpu(gpu_name(policy))


def rows(found: Found) -> int:
    """The number of rows to decide for, as kernels are chosen by it; where it is symbolic, its hint."""
    return programs.parse(found.lowered.spec.text()).rows(torch.Size(_leading(found)))


def row_classes(found: Found) -> tuple[int | None, ...]:
    """The classes of rows that a region's calls can have (:func:`comfuse.ops.resolver.m_class`)."""
    return (*resolver.M_CLASSES, None) if found.dynamic else (resolver.m_class(rows(found)),)


def _leading(found: Found) -> list[int]:
    if not found.dynamic:
        return list(found.lowered.lead_shape)
    return [_hint(size) for size in found.candidate.anchors[0].meta["val"].shape[:-1]]


def _hint(size: int | torch.SymInt) -> int:
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else _ROWS


def _has_templates() -> bool:
    """Whether TorchInductor may choose GEMMs of its own, with epilogues."""
    from torch._inductor import config

    return bool(config.max_autotune or config.max_autotune_gemm)


def _unsupported(found: Found) -> str:
    """Why the region's device has no kernels, or an empty string; a CPU runs any region, meta none at all."""
    device = found.candidate.anchors[0].meta["val"].device
    if device.type in ("cpu", "meta"):
        return ""
    if device.type != "cuda":
        return f"ComFuse has no kernels for {device.type} devices"
    return resolver.unsupported_gpu(device.index or 0) if torch.cuda.is_available() else ""


def _estimate(found: Found, gpu: Gpu) -> Estimate:
    """Both times.  Raises PlanError if no kernel runs it for some number of rows."""
    spec = found.lowered.spec
    if found.dynamic or isinstance(spec, ChainSpec):  # where one kernel pays depends on the class of rows
        for step in steps(spec):
            for hint in row_classes(found):
                plan(step.spec, gpu, hint)
    m, drawn = rows(found), _drawn(found)
    repeated = _repeated(found, m)
    return estimate(spec, m, gpu=gpu, template=_has_templates(), drawn=drawn, repeated=repeated)


def _repeated(found: Found, m: int) -> list[float]:
    """For each link the bytes of (M, N) operands that are not there, since rows or batches repeat them."""
    count = found.lowered.rows.count
    result = []
    for link in found.lowered.links:
        n = link.spec.n
        operands = [o for o in link.spec.operands if o.space is not Space.SCALAR]
        shares = (
            (1 - math.prod(axes.size_of(d.walk) for d in read.dims) / (count * n)) * operand.dtype.nbytes
            for read, operand in zip(link.operands, operands, strict=True)
            if read.space is Space.TILE and count
        )
        result.append(m * n * sum(shares))
    return result


def _drawn(found: Found) -> list[int]:
    """The bytes of each (M, N) operand made of random numbers that is there for the region alone.

    TorchInductor draws it where it is read, in the kernel behind the GEMM, and stores it there where a
    backward pass needs it.
    """
    tiles = [operand.position for operand in found.lowered.operands if operand.space is Space.TILE]
    nodes = dict.fromkeys(source(found.candidate.inputs[position]) for position in tiles)
    region = set(found.candidate.nodes)
    return [
        bytes_of(node)
        for node in nodes
        if is_random(node) and all(reader in region or reader.op == "output" for reader in readers(node))
    ]


def _verdict(found: Found, fused: bool, reason: str, times: Estimate | None = None) -> Verdict:
    anchor, spec = found.candidate.anchors[0], found.lowered.spec
    first = found.lowered.links[0].spec
    return Verdict(
        anchor=anchor.name,
        location=location(anchor),
        fused=fused,
        reason=reason,
        shape=_shape(anchor, first),
        nodes=len(found.candidate.nodes),
        reductions=_reductions(found),
        outputs=len(spec.outputs),
        spec=spec.text(),
        predicted_us=None if times is None else times.fused_us,
        unfused_us=None if times is None else times.unfused_us,
        kernels=_kernels(found) if fused else (),
    )


def _kernels(found: Found) -> tuple[tuple[str, int | None], ...]:
    return tuple((step.text, None if found.dynamic else rows(found)) for step in steps(found.lowered.spec))


def of_anchors(found: Found, verdict: Verdict) -> list[Verdict]:
    """The verdict for each GEMM of a region; those of a fused chain name each other."""
    candidates = found.candidate.links or (found.candidate,)
    anchors = found.candidate.anchors if verdict.fused else ()
    return [
        replace(
            verdict,
            anchor=anchor.name,
            location=location(anchor),
            shape=_shape(anchor, link.spec),
            chain=tuple(other.name for other in anchors if other not in candidate.anchors),
        )
        for candidate, link in zip(candidates, found.lowered.links, strict=True)
        for anchor in candidate.anchors
    ]


def _reductions(found: Found) -> int:
    return sum(node.op in REDUCTIONS for link in found.lowered.links for node in link.spec.nodes)


def _shape(anchor: Node, spec: FusedSpec) -> tuple[int | str, int | str, int | str]:
    sizes = [size if isinstance(size, int) else str(size) for size in anchor.meta["val"].shape[:-1]]
    return (_product(sizes), spec.n, spec.k)


def _product(sizes: Iterable[int | str]) -> int | str:
    """The product of sizes, as text where one is."""
    number, texts = 1, []
    for size in sizes:
        if isinstance(size, int):
            number *= size
        else:
            texts.append(size)
    return "*".join([*([str(number)] if number > 1 else []), *texts]) if texts else number


def _contents(found: Found) -> str:
    """What a region holds, in words."""
    spec = found.lowered.spec
    counts = (
        (len(found.candidate.nodes), "operator"),
        (_reductions(found), "reduction"),
        (len(spec.outputs), "output"),
        (len(steps(spec)), "kernel"),
    )
    return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count)
