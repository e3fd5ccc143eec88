"""Which programs are the same to a kernel, whatever their values are called."""

from __future__ import annotations

import json
from functools import lru_cache

from comfuse.build.cache import hash_text
from comfuse.generator.passes import normalize
from comfuse.generator.spec import FusedSpec


@lru_cache(maxsize=1024)
def signature(spec: FusedSpec) -> str:
    """Hash of a program's normal form without its names, its values in the order in which outputs need them.

    Programs of one signature take the same operands and give the same outputs, in the same order.

    Raises:
        SpecError: the spec is malformed.
    """
    spec = normalize(spec)
    numbers: dict[int, int] = {}
    nodes: list[object] = []

    def number(node: int) -> int:
        if node not in numbers:
            it = spec.nodes[node]
            inputs = [number(i) for i in it.inputs]
            numbers[node] = len(nodes)
            value = None if it.value is None else it.value.hex()
            nodes.append([it.op, inputs, it.operand, value, it.field])
        return numbers[node]

    outputs = [[number(o.node), o.dtype.value, o.strided, o.heads] for o in spec.outputs]
    operands = [[o.space.value, o.dtype.value, o.strided] for o in spec.operands]
    gemm = [
        spec.n, spec.k, spec.dtype.value, spec.products, spec.a_major.value, spec.b_major.value, spec.batched,
        spec.group,
    ]  # fmt: skip
    return hash_text(json.dumps([gemm, operands, nodes, outputs]))
