"""Which programs are the same to a kernel, whatever their values are called."""

from __future__ import annotations

import ctypes
import json
from functools import lru_cache

from comfuse.build.cache import hash_text
from comfuse.generator.chain import ChainSpec, normalize_chain
from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.passes import normalize
from comfuse.generator.spec import FusedSpec


@lru_cache(maxsize=1024)
def signature(spec: FusedSpec | ChainSpec) -> str:
    """Hash of a program's normal form without its names, and whatever the order of its nodes and of what an
    operator takes in either order.

    Programs of one signature take the same operands and give the same outputs, in the same order.

    Raises:
        SpecError: the spec is malformed.
    """
    if isinstance(spec, ChainSpec):
        return hash_text(json.dumps([signature(link) for link in normalize_chain(spec).links]))
    spec = normalize(spec)
    hashes: list[str] = []
    for node in spec.nodes:
        inputs = [hashes[i] for i in node.inputs]
        if node.op in ELEMENTWISE and ELEMENTWISE[node.op].commutative:
            inputs.sort()
        # Kernels compute in float32.
        value = None if node.value is None else ctypes.c_float(node.value).value.hex()
        hashes.append(hash_text(json.dumps([node.op, inputs, node.operand, value, node.field])))
    outputs = [[hashes[o.node], o.dtype.value, o.strided, o.heads] for o in spec.outputs]
    operands = [[o.space.value, o.dtype.value, o.strided] for o in spec.operands]
    gemm = [
        spec.n, spec.k, spec.dtype.value, spec.products, spec.a_major.value, spec.b_major.value, spec.batched,
        spec.group,
    ]  # fmt: skip
    if spec.second is not None:
        gemm += [spec.second.k, spec.second.a_major.value, spec.second.b_major.value]
    return hash_text(json.dumps([gemm, operands, outputs]))
