"""Graphs for tests of the region finder: TorchInductor's own, and some built by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from comfuse.inductor.candidate import Candidate
from comfuse.inductor.contest import find
from comfuse.inductor.policy import Policy
from tests.inductor.interpreted import interpreted

aten = torch.ops.aten
prims = torch.ops.prims


class Found:
    """What the finder made of one graph.

    Attributes:
        candidates, verdicts: as returned.
        regions: the operators of each candidate in the graph's order, without views and casts, by the names
            of its anchors.
        outputs: the names of each candidate's outputs.
        left: the reason of each other GEMM, by its name.
        new_guards: guards on symbolic sizes that the finder added.
    """

    def __init__(self, graph: Graph, policy: Policy) -> None:
        before = _guards(graph)
        self.candidates, self.verdicts = find(graph, policy)
        self.regions = {
            _key(c): " ".join(_op(node) for node in c.nodes if _op(node)) for c in self.candidates
        }
        self.outputs = {
            _key(c): [str(node.meta["val"].dtype)[6:] for node in c.outputs] for c in self.candidates
        }
        self.left = {verdict.anchor: verdict.reason for verdict in self.verdicts}
        self.new_guards = _guards(graph) - before


def _key(candidate: Candidate) -> str:
    return "+".join(anchor.name for anchor in candidate.anchors)


def _op(node: Node) -> str:
    """A short name of an operator; nothing for what computes nothing."""
    if node.op != "call_function" or not hasattr(node.target, "overloadpacket"):
        return ""
    name: str = node.target.overloadpacket.__name__
    return "" if name in _SILENT else name


_SILENT = {"view", "reshape", "convert_element_type", "permute", "clone", "unsqueeze", "squeeze", "alias"}


def _guards(graph: Graph) -> int:
    sizes = (s for n in graph.nodes for s in _sizes(n.meta.get("val")) if isinstance(s, torch.SymInt))
    return max((len(size.node.shape_env.guards) for size in sizes), default=0)


def _sizes(val: Any) -> Iterator[Any]:
    if isinstance(val, Tensor):
        yield from val.shape
    elif isinstance(val, torch.SymInt):
        yield val


def found(
    module: Callable[..., Any],
    *inputs: Tensor,
    train: bool = False,
    dynamic: bool = False,
    force: bool = False,
    autocast: bool = False,
) -> list[Found]:
    """What the finder makes of the graphs of a module: forward, and in training backward as well."""
    policy = Policy(force=force)
    results: list[Found] = []
    torch._dynamo.reset()
    with torch._inductor.config.patch(post_grad_custom_pre_pass=lambda g: results.append(Found(g, policy))):
        compiled = torch.compile(module, backend=interpreted, fullgraph=True, dynamic=dynamic)
        with torch.set_grad_enabled(train), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            result = compiled(*inputs)
        if train:
            result.float().sum().backward()
    return results


class Builder:
    """A graph, node by node.  Values are on the meta device."""

    def __init__(self) -> None:
        self.graph = Graph()

    def input(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Node:
        node = self.graph.placeholder(f"x{len(self.graph.nodes)}")
        node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
        return node

    def call(self, target: Callable[..., Any], *args: Any) -> Node:
        node = self.graph.call_function(target, args)
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        node.meta["val"] = target(*values)
        return node

    def mm(self, a: Node, b: Node) -> Node:
        return self.call(aten.mm.default, a, b)

    def output(self, *nodes: Node) -> Graph:
        self.graph.output(nodes)
        self.graph.lint()
        return self.graph


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def is_convex(nodes: tuple[Node, ...]) -> bool:
    """Whether no way out of the nodes leads back in."""
    inside = set(nodes)
    pending = [user for node in nodes for user in node.users if user not in inside]
    seen = set(pending)
    while pending:
        for user in pending.pop().users:
            if user in inside:
                return False
            if user not in seen:
                seen.add(user)
                pending.append(user)
    return True


def has_order(graph: Graph, candidates: list[Candidate]) -> bool:
    """Whether the graph has an order in which each candidate runs as one node."""
    group = {node: node for node in graph.nodes} | {n: c.anchors[0] for c in candidates for n in c.nodes}
    before = {
        g: {group[i] for n in graph.nodes if group[n] is g for i in n.all_input_nodes} - {g}
        for g in group.values()
    }
    while before:
        ready = [g for g, reads in before.items() if not reads]
        if not ready:
            return False
        for g in ready:
            del before[g]
        for reads in before.values():
            reads.difference_update(ready)
    return True


@contextmanager
def no_fast_path() -> Iterator[None]:
    """In inference torch.nn.TransformerEncoderLayer is one opaque operator unless told otherwise."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)
