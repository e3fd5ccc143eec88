"""What a forward pass saves for its backward pass, where torch leaves open which of several values it is.

A sum of a GEMM's result and others, as a norm reads it, can be computed again in the backward pass from what
it is the sum of: the GEMM's result, a mask, a residual.  Saved itself it is as large as the GEMM's result,
which nobody needs then, and the region of the backward pass reads one tensor where it would read three, twice
where it waits for a reduction.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from comfuse.inductor.nodes import (
    bytes_of,
    holds_tensor,
    is_anchor,
    is_free,
    is_random,
    is_reduction,
    over_rows,
    tensor,
)

aten = torch.ops.aten

_SUMS = {aten.add.Tensor, aten.sub.Tensor}
_SCALINGS = {aten.mul.Tensor, aten.div.Tensor}


def save_sums(graph: Graph) -> None:
    """Marks the sums behind GEMMs that reductions along rows read, in a graph of both passes.

    torch's partitioner then recomputes none of them.  What the user has marked (activation checkpointing)
    stays as it is.
    """
    sums: dict[Node, int] = {}  # of the results of GEMMs and others, and the bytes of those results
    made: dict[Node, Node] = {}  # what is computed of one sum and of nothing else, and that sum
    for node in graph.nodes:
        if node.meta.get("partitioner_tag") == "is_backward" or not node.all_input_nodes:
            continue
        if is_reduction(node):
            _mark(node, made.get(node.all_input_nodes[0]))
        elif is_anchor(node):
            sums[node], made[node] = bytes_of(node), node
        elif holds_tensor(node):
            _follow(node, sums, made)


def _follow(node: Node, sums: dict[Node, int], made: dict[Node, Node]) -> None:
    terms = [i for i in node.all_input_nodes if i in sums]
    if terms and _is_sum(node, terms):
        sums[node] = max(sums[i] for i in terms)
        if bytes_of(node) <= sums[node] and not is_free(node):
            made[node] = node
            return
    first, *others = node.all_input_nodes
    if first in made and all(made.get(i) is made[first] for i in others):
        made[node] = made[first]


def _is_sum(node: Node, terms: list[Node]) -> bool:
    """Whether its gradient needs none of its terms."""
    if is_free(node) or node.target in _SUMS:
        return True
    others = [i for i in node.all_input_nodes if i not in terms]
    return node.target in _SCALINGS and len(terms) == 1 and all(map(_is_mask, others))


def _is_mask(node: Node) -> bool:
    return holds_tensor(node) and (tensor(node).dtype is torch.bool or is_random(node))


def _mark(reduction: Node, found: Node | None) -> None:
    if found is not None and not is_anchor(found) and not over_rows(reduction):
        found.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
