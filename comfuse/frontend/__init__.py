"""The front end: the only room that reads fx graphs.

``capture`` turns a function and example inputs into an aten graph, ``lower`` the graph into a FusedSpec by
the table in ``handlers``; ``region`` says which argument is what, and ``fuse`` does all of it at a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comfuse.frontend.errors import TraceError
from comfuse.frontend.fuse import FusedFunction, fuse, unfused
from comfuse.frontend.region import TracedRegion
from comfuse.frontend.trace import trace_region
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import FusedSpec

__all__ = ["FusedFunction", "TraceError", "TracedRegion", "fuse", "trace", "trace_region", "unfused"]


def trace(fn: Callable[..., Any], *example_inputs: Any) -> FusedSpec | ChainSpec:
    """What ``fn`` computes: a spec, of one GEMM and everything behind it; or a chain of two, where the result
    of the first is the left factor of the second and nothing else reads it.

    Args:
        fn: a function of tensors and numbers.  Among its tensors are A, ``(..., K)``, and a weight
            ``(N, K)`` in bfloat16 or float16; others are (..., N) tiles, (N,) rows or (..., 1) columns in
            bfloat16, float16 or float32.
        example_inputs: positional arguments for it.  Fake and meta tensors suffice; no GPU is needed.
            A float becomes a run-time scalar where ``fn`` does not need its value.

    Raises:
        TraceError: ``fn`` is not one fused kernel; names the node, its place in the source, and the reason.
        ArgumentError: an input of an unsupported type, or tensors on several devices.
    """
    return trace_region(unfused(fn), example_inputs).spec
