"""Workspaces of the ops: changing M, several streams, CUDA graphs, eager calls between replays."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.gpu.compare import relative_error, same_bits, tolerance
from tests.gpu.outputs import poison_allocator
from tests.gpu.test_ops import OpCase, OpInputs, make_inputs, no_fallback  # noqa: F401

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "no_fallback")]

# The row-group exchange needs a workspace; tile scope (N = 64) and no reduction at all do not.
CASES = (
    OpCase("layernorm", 768),
    OpCase("layernorm", 5376),
    OpCase("rmsnorm", 1152, bias=False, position="after", offset=1.0),
    OpCase("layernorm", 64),
)


def specs_ahead():
    return [case.spec() for case in CASES]


def _right(i: OpInputs, y: torch.Tensor) -> None:
    assert relative_error(y, i.reference()) <= tolerance(y.dtype, y.numel())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_m_changes_from_call_to_call(case: OpCase) -> None:
    inputs = {m: make_inputs(case, (m,), 72) for m in (256, 128, 130, 1)}
    first = {m: i.call() for m, i in inputs.items()}
    for m, i in inputs.items():
        _right(i, first[m])
    for m in (256, 128, 256, 130, 256, 256, 1, 128, 130, 256):
        poison_allocator(first[m])
        assert same_bits(inputs[m].call(), first[m]), f"M = {m}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_twenty_calls_give_the_same_bits(case: OpCase) -> None:
    i = make_inputs(case, (16344,), 72)
    first = i.call()
    for _ in range(20):
        poison_allocator(first, copies=1)
        assert same_bits(i.call(), first)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_streams_at_once(case: OpCase) -> None:
    inputs = [make_inputs(case, (4096,), 72, seed) for seed in range(2)]
    alone = [i.call() for i in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[], []]
    for _ in range(20):
        for i, stream, kept in zip(inputs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                kept.append(i.call())
    torch.cuda.synchronize()
    for kept, expected in zip(results, alone, strict=True):
        for y in kept:
            assert same_bits(y, expected)


def _capture(*inputs: OpInputs) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    for i in inputs:
        i.call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [i.call() for i in inputs]
    return graph, outputs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_graph_replays_with_eager_calls_between(case: OpCase) -> None:
    inputs = [make_inputs(case, (m,), 72) for m in (256, 1000)]
    expected = [i.call() for i in inputs]
    graph, outputs = _capture(*inputs, *inputs)  # two calls of each in one graph
    for _ in range(20):
        for y in outputs:
            y.fill_(float("nan"))
        graph.replay()
        for i, e in zip(inputs, expected, strict=True):
            assert same_bits(i.call(), e)
        torch.cuda.synchronize()
        for y, e in zip(outputs, (*expected, *expected), strict=True):
            assert same_bits(y, e)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_graphs_on_two_streams(case: OpCase) -> None:
    """Each graph owns its workspace, so that replays may overlap each other and eager calls."""
    inputs = [make_inputs(case, (4096,), 72, seed) for seed in range(2)]
    expected = [i.call() for i in inputs]
    captured = [_capture(i) for i in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(10):
        for (graph, _), stream in zip(captured, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        assert same_bits(inputs[0].call(), expected[0])
    torch.cuda.synchronize()
    for (_, (y,)), e in zip(captured, expected, strict=True):
        assert same_bits(y, e)


def test_graphs_come_and_go() -> None:
    """A destroyed graph gives its workspace back, and the next one starts from a clean one."""
    i = make_inputs(CASES[0], (1000,), 72)
    expected = i.call()
    for replays in (1, 2, 3, 1, 2):
        graph, (y,) = _capture(i)
        for _ in range(replays):  # odd and even numbers: the tag stands either way when the graph goes
            y.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert same_bits(y, expected)
        del graph, y
        gc.collect()
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
