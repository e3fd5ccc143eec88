"""A call of the op in the place of a candidate's nodes, in the graphs that TorchInductor really has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from comfuse.inductor.candidate import Candidate
from comfuse.inductor.lowerer import lowered
from comfuse.inductor.replace import replace
from tests.inductor.passes import compiled

aten = torch.ops.aten
Tensor = torch.Tensor
_ANCHORS = (aten.mm.default, aten.addmm.default, aten.bmm.default)


def behind(graph: Graph, anchor: Node) -> Candidate:
    """The anchor and all that depends on it."""
    inside: dict[Node, None] = {}
    for node in graph.nodes:
        if node is anchor or (node.op == "call_function" and any(i in inside for i in node.all_input_nodes)):
            inside[node] = None
    inputs = dict.fromkeys(i for node in inside for i in node.all_input_nodes if i not in inside)
    outputs = tuple(node for node in inside if any(user not in inside for user in node.users))
    return Candidate((anchor,), tuple(inside), tuple(inputs), outputs)


def replace_last(graph: Graph) -> None:
    (*_, anchor) = (node for node in graph.nodes if node.target in _ANCHORS)
    replace(graph, lowered(behind(graph, anchor)))


def run(fn: Callable[..., Any], *args: Tensor, dynamic: bool = False) -> tuple[Any, str]:
    """What ``fn`` gives with its last GEMM's region replaced, and the text of the graph."""
    text = ""

    def both(graph: Graph) -> None:
        nonlocal text
        replace_last(graph)
        text = str(graph)

    with torch.no_grad():
        result = compiled(fn, both, dynamic=dynamic)(*args)
    return result, text


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def norm(x: Tensor, w: Tensor, bias: Tensor, r: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, bias) + r, (64,), g, b)


@pytest.mark.parametrize("dynamic", [False, True])
def test_linear_and_layer_norm(dynamic: bool) -> None:
    torch.manual_seed(0)
    args = half(2, 24, 64), half(64, 64), half(64), half(2, 24, 64), half(64), half(64)
    found, text = run(norm, *args, dynamic=dynamic)
    exact = norm(*(x.double() for x in args))
    allowed = 2 * (norm(*args).double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= allowed
    assert text.count("comfuse.region_1.t4") == 1
    assert "addmm" not in text
    assert "var_mean" not in text
