"""Takes faster activations where a result is rounded to bfloat16 before anyone sees it.

``gelu`` becomes ``fast_gelu``, and so on: one instruction of the special function unit an element instead of
two, which is what such an element costs.  Their error is absolute, about 2^-12 of the argument, where a
rounding to bfloat16 is off by up to 2^-9 of the result.  So only where nothing magnifies small results: what
reads them, up to the output, are sums and products.
"""

from __future__ import annotations

from dataclasses import replace

from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.spec import DType, FusedSpec

_KEEPS = ("add", "sub", "mul", "neg")  # what an absolute error passes as large as it was


def approximate(spec: FusedSpec) -> FusedSpec:
    """The program with every activation replaced that may be; its first output is rounded to its dtype."""
    if spec.dtype is not DType.BF16:
        return spec
    exact = _read_exactly(spec)
    nodes = tuple(
        node if node.op not in ELEMENTWISE or i in exact else replace(node, op=ELEMENTWISE[node.op].fast or node.op)
        for i, node in enumerate(spec.nodes)
    )
    return replace(spec, nodes=nodes)


def _read_exactly(spec: FusedSpec) -> set[int]:
    """The nodes whose relative error matters: what other outputs store, and what other ops read."""
    exact = {output.node for output in spec.outputs[1:]}
    for i in reversed(range(len(spec.nodes))):
        node = spec.nodes[i]
        if i in exact or node.op not in _KEEPS:
            exact.update(node.inputs)
    return exact
