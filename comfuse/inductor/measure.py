"""Times of one region, fused and in TorchInductor, side by side on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from comfuse import timing
from comfuse.errors import DeviceError
from comfuse.frontend.symbols import is_symbolic
from comfuse.inductor import log
from comfuse.inductor.candidate import Candidate
from comfuse.inductor.entrances import options
from comfuse.inductor.extract import extract

_ROUNDS = 30
_MODES = ("default", "max-autotune-no-cudagraphs")


def check_device(arguments: Any) -> None:
    """Raises DeviceError if nothing among the arguments is on a GPU."""
    tensors = [x for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor)]
    if not any(x.is_cuda for x in tensors):
        found = ", ".join(dict.fromkeys(str(x.device) for x in tensors)) or "no tensors"
        raise DeviceError("explain", "inputs", found, "tensors on a CUDA device, for measure=True")


def times(candidate: Candidate) -> dict[str, float]:
    """``measured_us`` fused and ``unfused_measured_us`` in the better mode of TorchInductor, in microseconds.

    Both of random inputs, in CUDA graphs.  Empty where the region has symbolic rows or cannot be fused.
    """
    if any(is_symbolic(node.meta["val"]) for node in (*candidate.inputs, *candidate.nodes)):
        return {}
    captured = extract(candidate, {})
    inputs = [_random(node.meta["val"]) for node in captured.arguments]
    module = GraphModule(captured.constants, captured.graph)
    calls = {mode: torch.compile(module, dynamic=False, mode=mode) for mode in _MODES}
    calls["comfuse"] = torch.compile(module, dynamic=False, options=options(force=True))
    with torch.no_grad():
        before = log.counts().get("fused", 0)
        calls["comfuse"](*inputs)
        if log.counts().get("fused", 0) == before:
            return {}
        for mode in _MODES:
            calls[mode](*inputs)
        graphs = {name: timing.capture(lambda call=call: call(*inputs)) for name, call in calls.items()}
        us = {name: time.us for name, time in timing.time_interleaved(graphs, _ROUNDS).items()}
    return {"measured_us": us["comfuse"], "unfused_measured_us": min(us[mode] for mode in _MODES)}


def _random(val: Tensor) -> Tensor:
    """A tensor of this shape, dtype and layout; products of factors stay far from overflow."""
    x = torch.empty_strided(val.shape, val.stride(), dtype=val.dtype, device=val.device)
    if not val.dtype.is_floating_point:
        return x.random_(0, 2)
    return x.copy_(torch.randn(val.shape, device=val.device) * 0.1)
