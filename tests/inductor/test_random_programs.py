"""Random torch functions through the whole pass: the graph behind it means what the graph before it does.

Both are run in float64, and a kernel's spec too, so that nothing is rounded.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Interpreter
from torch.utils import _pytree as pytree

from comfuse.inductor.policy import Policy
from comfuse.inductor.run import run
from comfuse.ops.schema import ALONE, FIXED, GENERAL
from tests.frontend.support import K, N, exact, tensor
from tests.frontend.test_random_functions import OF_ROWS, REDUCTIONS, RESULTS, Operands, function, step
from tests.inductor.interpreted import interpreted

_FIXED = {op for forms in FIXED.values() for op in forms}


class Exact(Interpreter):
    """Runs a graph in float64."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _FIXED:
            text, a, b, *operands = args
            outputs = exact(text, a, b, operands, [])
            return outputs[0] if len(outputs) == 1 else outputs
        if target is GENERAL:
            return exact(*args)
        if target is ALONE:
            text, a, b, scalars = args
            return exact(text, a, b, [], scalars)
        args, kwargs = pytree.tree_map_only(torch.dtype, _wide, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype


def _inputs(graph: Graph) -> list[Any]:
    vals = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    return [_input(val, seed) if isinstance(val, Tensor) else val for seed, val in enumerate(vals)]


def _input(val: Tensor, seed: int) -> Tensor:
    if val.dtype is torch.bool:
        return tensor(*val.shape, seed=seed) > 0
    if not val.is_floating_point():
        return torch.zeros(tuple(val.shape), dtype=val.dtype)
    strided = torch.empty_strided(tuple(val.shape), val.stride(), dtype=torch.float64)
    return strided.copy_(tensor(*val.shape, seed=seed))


class Comparing:
    """A pass that fuses, and compares what the graph gives before and after."""

    def __init__(self) -> None:
        self.fused = 0

    def __call__(self, graph: Graph) -> None:
        with unset_fake_temporarily():
            inputs = _inputs(graph)
            before = _results(graph, inputs)
        self.fused += sum(verdict.fused for verdict in run(graph, Policy(force=True)))
        with unset_fake_temporarily():
            for y, x in zip(_results(graph, inputs), before, strict=True):
                if isinstance(x, Tensor):
                    torch.testing.assert_close(y.double(), x.double(), rtol=2e-5, atol=2e-5, equal_nan=True)


def _results(graph: Graph, inputs: list[Any]) -> list[Any]:
    return pytree.tree_leaves(Exact(GraphModule(graph.owning_module, graph)).run(*inputs))


def compare(fn: Any, *args: Tensor, grad: bool) -> int:
    """Compares the graphs of ``fn``; returns how many GEMMs were fused."""
    comparing = Comparing()
    torch._dynamo.reset()
    args = tuple(x.requires_grad_(grad) for x in args)
    with (
        torch._inductor.config.patch(post_grad_custom_pre_pass=comparing),
        contextlib.nullcontext() if grad else torch.no_grad(),
    ):
        results = torch.compile(fn, backend=interpreted, fullgraph=True, dynamic=False)(*args)
        found = [y for y in results if y.requires_grad]
        if found:
            torch.autograd.backward(found, found)
    return comparing.fused


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(step, min_size=1, max_size=8),
    lead=st.sampled_from([(5,), (2, 3), (4, 1), (1, 4), (3, 2, 2), (N,)]),
    products=st.sampled_from(["one", "one", "halves", "interleaved"]),
    results=st.lists(st.sampled_from(RESULTS), min_size=1, max_size=3),
    feedback=st.sampled_from([None, None, None, REDUCTIONS[0], REDUCTIONS[2]]),
    grad=st.booleans(),
)
def test_random_programs(steps, lead, products, results, feedback, grad):
    rows = N if products == "one" else 2 * N
    operands = [tensor(*shape, seed=number) for number, shape in enumerate(Operands(lead).shapes())]
    args = (tensor(*lead, K, seed=7), tensor(rows, K, seed=8), *operands)
    compare(function(steps, products, results, feedback), *args, grad=grad)


@pytest.fixture(scope="module", autouse=True)
def strict():
    """Bugs raise, here and in the pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMFUSE_STRICT", "1")
        yield


@pytest.mark.parametrize("apply", OF_ROWS, ids=range(len(OF_ROWS)))
def test_the_functions_above_are_fused(apply):
    args = (tensor(2, 3, K, seed=7), tensor(N, K, seed=8))
    assert compare(function([("norm", apply, 0)], "one", RESULTS[:1], None), *args, grad=True) >= 1
