"""The region finder on random graphs: whatever is refused, what is found can be replaced."""

from __future__ import annotations

import operator
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, Node

from comfuse.frontend.errors import TraceError
from comfuse.inductor import contest, lowerer
from comfuse.inductor.candidate import Candidate, Found
from comfuse.inductor.nodes import is_anchor
from comfuse.inductor.policy import Policy
from tests.inductor.graphs import Builder, has_order, is_convex

aten = torch.ops.aten
prims = torch.ops.prims

M, N = 24, 32
OPERATORS = (
    "mm",
    "mm",
    "add",
    "mul",
    "relu",
    "cast",
    "sum",
    "sum_rows",
    "clone",
    "var_mean",
    "cumsum",
    "copy",
)


@dataclass(frozen=True)
class Step:
    """An operator, where it reads, and whether its result is returned."""

    op: str
    first: int
    second: int
    returned: bool


def program(seed: int, size: int) -> list[Step]:
    """So many random steps.  Places are counted from the last value on, most of them near, so that graphs
    are deep; hypothesis itself prefers few and equal ones."""
    draw = random.Random(seed)

    def place() -> int:
        return draw.randrange(draw.choice((3, 6, 40)))

    return [Step(draw.choice(OPERATORS), place(), place(), draw.random() < 0.15) for _ in range(size)]


programs = st.builds(program, st.integers(0, 2**32), st.sampled_from((10, 20, 30, 50)))


def build(steps: list[Step]) -> Graph:
    make = Builder()
    weight = make.input(N, N)
    arguments = [make.input(N), make.input(M, 1), make.input(M, N), make.input(M, N)]
    values, returned = [*arguments], []
    for step in steps:
        x, y = values[-1 - step.first % len(values)], values[-1 - step.second % len(values)]
        results = _call(make, step.op, x, y, weight, arguments[-1])
        values += results
        returned += results if step.returned else []
    unread = [node for node in values if node.op == "call_function" and not node.users]
    return make.output(*dict.fromkeys([*returned, *unread]))


def _call(make: Builder, op: str, x: Node, y: Node, weight: Node, changed: Node) -> list[Node]:
    """The results of an operator; none where it does not fit."""
    val = x.meta["val"]
    if op == "mm":
        if val.shape != (M, N):
            return []
        return [make.mm(x if val.dtype is torch.bfloat16 else _cast(make, x, torch.bfloat16), weight)]
    if op in ("add", "mul"):
        return [make.call(getattr(aten, op).Tensor, x, y)]
    if op == "cast":
        return [_cast(make, x, torch.float32 if val.dtype is torch.bfloat16 else torch.bfloat16)]
    if op == "sum":
        return [make.call(aten.sum.dim_IntList, x, [-1], True)]
    if op == "sum_rows":
        return [make.call(aten.sum.dim_IntList, x, [0], True)]
    if op == "var_mean":
        options = {"correction": 0, "keepdim": True}
        both = make.graph.call_function(aten.var_mean.correction, (x, [-1]), options)
        both.meta["val"] = aten.var_mean.correction(val, [-1], **options)
        return [make.call(operator.getitem, both, i) for i in (0, 1)]
    if op == "cumsum":
        return [make.call(aten.cumsum.default, x, 0)]
    if op == "copy":
        fits = val.shape == changed.meta["val"].shape and x is not changed
        return [make.call(aten.copy_.default, changed, x)] if fits else []
    return [make.call(getattr(aten, op).default, x)]


def _cast(make: Builder, x: Node, dtype: torch.dtype) -> Node:
    return make.call(prims.convert_element_type.default, x, dtype)


@settings(max_examples=150, deadline=None)
@given(programs, st.data(), st.booleans())
def test_regions_can_be_replaced_whatever_is_refused(
    steps: list[Step], data: st.DataObject, force: bool
) -> None:
    graph = build(steps)
    refused = set(data.draw(st.lists(st.sampled_from([n.name for n in graph.nodes]), max_size=4)))

    def lowered(candidate: Candidate) -> Found:
        for node in candidate.nodes:
            if node.name in refused:
                raise TraceError("refused", node=node.name)
        return lowerer.lowered(candidate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contest, "lowered", lowered)
        candidates, verdicts = contest.find(graph, Policy(force=force))
    inside = [node for candidate in candidates for node in candidate.nodes]
    assert len(inside) == len(set(inside)), "two regions share a node"
    assert not refused & {node.name for node in inside}
    assert has_order(graph, candidates)
    for candidate in candidates:
        own = set(candidate.nodes)
        assert is_convex(candidate.nodes)
        assert set(candidate.anchors) == {node for node in own if is_anchor(node)}
        assert list(candidate.nodes) == [node for node in graph.nodes if node in own]
        assert set(candidate.outputs) == {n for n in own if any(user not in own for user in n.users)}
        assert set(candidate.inputs) == {i for n in own for i in n.all_input_nodes} - own
        behind = set(candidate.anchors)
        for node in candidate.nodes:
            if any(i in behind for i in node.all_input_nodes):
                behind.add(node)
        assert set(candidate.outputs) <= behind, "it returns what does not depend on its GEMMs"
    anchors = [node.name for node in graph.nodes if is_anchor(node)]
    answered = [a.name for c in candidates for a in c.anchors] + [v.anchor for v in verdicts]
    assert sorted(answered) == sorted(anchors)
    assert all(verdict.reason and not verdict.fused for verdict in verdicts)


@settings(max_examples=40, deadline=None)
@given(programs)
def test_what_is_found_is_what_the_front_end_takes(steps: list[Step]) -> None:
    candidates, _ = contest.find(build(steps), Policy(force=True))
    for candidate in candidates:
        found = contest.lowered(candidate)
        assert len(found.lowered.results) == len(candidate.outputs)
        stored = {form.index for form in found.lowered.results}
        assert stored == set(range(len(found.lowered.spec.outputs)))
