"""What the nodes of a graph are to the region finder.

What can be fused is known by the front end alone; its tables are asked here.  No size is compared: where a
size has symbols, its hint stands in for it, in estimates only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from comfuse.frontend.gemm import FACTORS
from comfuse.frontend.handlers import ELEMENTWISE, FILLS, POSITIONS, REDUCTIONS
from comfuse.frontend.views import CASTS, arguments, is_view, source

# Stands in for a size that has no hint.
_UNKNOWN_SIZE = 4096


def is_anchor(node: Node) -> bool:
    """Whether a node is a product of matrices that a kernel may start with."""
    return node.op == "call_function" and node.target in FACTORS


def factors(anchor: Node) -> tuple[Node, Node]:
    """The left and the right factor of a GEMM."""
    left, right = (anchor.args[i] for i in FACTORS[anchor.target])
    assert isinstance(left, Node)
    assert isinstance(right, Node)
    return left, right


def is_cast(node: Node) -> bool:
    return node.op == "call_function" and node.target in CASTS


def is_item(node: Node) -> bool:
    """Whether a node is one of several results of an operator, and no view."""
    return node.target is operator.getitem and not is_view(node)


def is_reduction(node: Node) -> bool:
    return node.op == "call_function" and node.target in REDUCTIONS


def is_free(node: Node) -> bool:
    """Whether a node computes nothing: it gives its input another shape or dtype."""
    return is_view(node) or is_cast(node) or is_item(node)


def is_known(node: Node) -> bool:
    """Whether the front end has a rule for an operator behind a GEMM; it may still refuse its arguments."""
    if node.op != "call_function":
        return False
    if is_item(node):
        return is_reduction(node.args[0])  # type: ignore[arg-type]
    return is_free(node) or node.target in ELEMENTWISE or node.target in REDUCTIONS or node.target in FILLS


def is_pointwise(node: Node) -> bool:
    """Whether TorchInductor computes a node where it is read, and does not store it for that."""
    if node.op != "call_function":
        return False
    if is_free(node) or node.target in FILLS or node.target in POSITIONS or node.target in ELEMENTWISE:
        return True
    is_tagged = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return is_tagged or str(node.target).startswith("prims.inductor_")  # random numbers


def is_random(node: Node) -> bool:
    """Whether TorchInductor computes a node, where it is read, from numbers that it draws there."""
    pending, seen = [node], {node}
    while pending:
        found = pending.pop()
        if not is_pointwise(found):
            continue
        if str(found.target).startswith("prims.inductor_rand"):
            return True
        fresh = {*found.all_input_nodes} - seen
        seen |= fresh
        pending += fresh
    return False


def is_inductors(node: Node) -> bool:
    """Whether TorchInductor makes one kernel of a node and what it reads."""
    return is_pointwise(node) or is_reduction(node)


def over_rows(node: Node) -> bool:
    """Whether a reduction runs over more than the last dimension: its result waits for all rows."""
    if not is_reduction(node) or not holds_tensor(node.all_input_nodes[0]):
        return False
    given, rank = arguments(node), tensor(node.all_input_nodes[0]).dim()
    if "dim" not in given:
        return elements(node) == 1  # of all; norms have rows of their own
    reduced = given["dim"]
    listed = [reduced] if isinstance(reduced, int) else [*(reduced or range(rank))]
    return any(dim % max(rank, 1) != rank - 1 for dim in listed)


# --- what they hold -------------------------------------------------------------------------------------


def tensor(node: Node) -> torch.Tensor:
    """The tensor of a node, as traced."""
    found = node.meta["val"]
    assert isinstance(found, torch.Tensor), node
    return found


def holds_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def elements(node: Node) -> int:
    """Number of elements, by hints; 0 of what is no tensor."""
    return math.prod(_hint(size) for size in tensor(node).shape) if holds_tensor(node) else 0


def bytes_of(node: Node) -> int:
    """Size in bytes, by hints; 0 of what is no tensor."""
    return elements(node) * tensor(node).element_size() if holds_tensor(node) else 0


def _hint(size: int | torch.SymInt) -> int:
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else _UNKNOWN_SIZE


# --- what they read -------------------------------------------------------------------------------------


def readers(node: Node) -> Iterator[Node]:
    """The nodes that read a value, itself or a view of it."""
    for user in node.users:
        if is_view(user):
            yield from readers(user)
        else:
            yield user


def written(graph: Graph) -> set[Node]:
    """What operators of the graph write to, by the node that made it."""
    found = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
        if schema is None or not schema.is_mutable:
            continue
        given: dict[str, Any] = arguments(node)
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                held = given[argument.name]
                found |= {source(x) for x in (held if isinstance(held, list | tuple) else [held])
                          if isinstance(x, Node)}  # fmt: skip
    return found
