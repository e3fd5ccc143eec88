"""What a function itself computes in float32 where a kernel would round it.

A spec says nothing of casts between float types, nor in which of them a value is computed:
:mod:`comfuse.generator.deferral.rounding` knows it of operands alone.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from comfuse.frontend.gemm import FACTORS
from comfuse.frontend.handlers import REDUCTIONS
from comfuse.frontend.views import CASTS, dtype_of, is_view

aten = torch.ops.aten

_SUMS = {aten.add.Tensor, aten.rsub.Tensor, aten.sub.Tensor}
_NORMS = {aten.native_group_norm.default, aten.native_layer_norm.default, aten._log_softmax.default}
_SCALES = {
    aten.div.Scalar,
    aten.div.Tensor,
    aten.mul.Scalar,
    aten.mul.Tensor,
    aten.neg.default,
    aten.where.self,
}


def never_rounded(graph: Graph) -> Node | None:
    """A value of a product that is shifted by a reduction, and is float32 from its last rounding on.

    Casts, factors and choices behind the last rounding keep its relative error.
    """
    late: set[Node] = set()
    rounded: dict[Node, bool] = {}  # of what comes from a product and reads no reduction
    for node in graph.nodes:
        read = [i for i in node.all_input_nodes if i in rounded]
        if node.target in _NORMS and read and not rounded[read[0]]:
            return read[0]
        if node.target in _SUMS and any(i in late for i in node.all_input_nodes):
            exposed = next((i for i in read if not rounded[i]), None)
            if exposed is not None:
                return exposed
        if node.target in REDUCTIONS or any(i in late for i in node.all_input_nodes):
            late.add(node)
        elif node.target in FACTORS:
            rounded[node] = True
        elif read:
            keeps = node.target in CASTS | _SCALES or node.target is operator.getitem or is_view(node)
            rounded[node] = dtype_of(node) is not torch.float32 or (keeps and all(rounded[i] for i in read))
    return None
