"""Regions as the pass finds them, for tests of what comes behind the finder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from comfuse.frontend.gemm import FACTORS
from comfuse.inductor.candidate import Candidate, Found
from comfuse.inductor.lowerer import lowered
from tests.inductor.interpreted import interpreted

aten = torch.ops.aten


def behind(graph: Graph, *anchors: Node) -> Candidate:
    """The anchors and all that depends on them."""
    inside: dict[Node, None] = {}
    for node in graph.nodes:
        depends = node.op == "call_function" and any(i in inside for i in node.all_input_nodes)
        if node in anchors or (depends and node.target is not aten.copy_.default):
            inside[node] = None
    inputs = dict.fromkeys(i for node in inside for i in node.all_input_nodes if i not in inside)
    outputs = tuple(node for node in inside if any(user not in inside for user in node.users))
    return Candidate(anchors, tuple(inside), tuple(inputs), outputs)


def products(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.target in FACTORS]


def found(fn: Callable[..., Any], *args: Any, dynamic: tuple[int, ...] = ()) -> Found:
    """The region of all GEMMs of ``fn`` and all behind them, in the graph that TorchInductor makes of it.

    ``dynamic``: which arguments have a symbolic first size.
    """
    results: list[Found] = []
    torch._dynamo.reset()
    for position in dynamic:
        torch._dynamo.mark_dynamic(args[position], 0)
    with torch._inductor.config.patch(
        post_grad_custom_pre_pass=lambda graph: results.append(lowered(behind(graph, *products(graph))))
    ):
        torch.compile(fn, backend=interpreted, fullgraph=True)(*args)
    (result,) = results
    return result


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)
