"""A candidate as a graph of its own, as the front end captures functions."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from comfuse.frontend.capture import Captured
from comfuse.frontend.handlers import FILLS
from comfuse.frontend.symbols import Table, concrete
from comfuse.inductor import operators
from comfuse.inductor.candidate import Candidate

aten = torch.ops.aten
operators.register()


def extract(candidate: Candidate, table: Table) -> Captured:
    """The candidate with its inputs as arguments and its outputs as results, with numbers for symbols.

    The position of an argument is that in ``candidate.inputs``.  Inputs that are sizes, or filled with one
    number, are no arguments: they become numbers where they are used.

    Raises:
        TraceError: an input is filled with something else than a number.
    """
    graph = Graph()
    env: dict[Node, Any] = {}
    arguments: dict[Node, int] = {}
    for position, node in enumerate(candidate.inputs):
        val = concrete(node.meta["val"], table)
        if not isinstance(val, torch.Tensor):
            env[node] = val
            continue
        if node.target in FILLS:
            env[node] = fill = graph.call_function(aten.full.default, ([], FILLS[node.target](node)))
            fill.meta = {"val": val}
            continue
        argument = graph.placeholder(node.name)
        argument.meta = {"val": val, "argument": node.name}
        env[node], arguments[argument] = argument, position
    for node in candidate.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
        env[node] = copy = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        copy.meta = {**node.meta, "val": concrete(node.meta["val"], table)}
    outputs = tuple(env[node] for node in candidate.outputs)
    graph.output(outputs)
    return Captured(
        graph=graph,
        constants=torch.nn.Module(),
        names=tuple(node.name for node in candidate.inputs),
        arguments=arguments,
        scalars=frozenset(),
        outputs=outputs,
        structure=pytree.tree_structure(tuple(range(len(outputs)))),
        device=candidate.anchors[0].meta["val"].device.type,
        named=False,
    )
