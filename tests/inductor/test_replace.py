"""A call of the op in the place of a candidate's nodes, in the graphs that TorchInductor really has."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from comfuse.frontend.errors import TraceError
from comfuse.inductor import replace as module
from comfuse.inductor.candidate import Candidate
from comfuse.inductor.lowerer import lowered
from comfuse.inductor.merge import merge_views
from comfuse.inductor.replace import replace
from tests.inductor.interpreted import interpreted
from tests.inductor.regions import behind, products

aten = torch.ops.aten
Tensor = torch.Tensor
Change = Callable[[Graph], None]


def replace_last(graph: Graph) -> None:
    replace(graph, lowered(behind(graph, products(graph)[-1])))


def replace_all_in_one(graph: Graph) -> None:
    merge_views(graph)
    replace(graph, lowered(behind(graph, *products(graph))))


def compiled(
    fn: Callable[..., Any],
    *args: Any,
    change: Change = replace_last,
    dynamic: Sequence[int] = (),
    grad: bool = False,
) -> tuple[Any, list[str]]:
    """What ``fn`` gives with ``change`` on TorchInductor's hook, and the text of each graph after it.

    ``dynamic``: the dimensions of tensors with three or four that are symbolic.
    """
    texts = []

    def both(graph: Graph) -> None:
        change(graph)
        texts.append(str(graph))

    torch._dynamo.reset()
    for arg in args:
        if arg.ndim in (3, 4):
            torch._dynamo.maybe_mark_dynamic(arg, dynamic)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=both), torch.set_grad_enabled(grad):
        result = torch.compile(fn, backend=interpreted, fullgraph=True)(*args)
        if grad:
            result.float().sum().backward()
    return result, texts


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def exact(fn: Callable[..., Any], args: Any) -> Any:
    return fn(*(x.double() for x in args))


def check(found: Tensor, halves: Tensor, doubles: Tensor) -> None:
    """At most twice the error of torch's own operators in half precision."""
    assert found.dtype == halves.dtype
    assert found.stride() == halves.stride()
    allowed = 2 * (halves.double() - doubles).abs().max()
    assert (found.double() - doubles).abs().max() <= allowed


def check_all(fn: Callable[..., Any], args: Any, **options: Any) -> str:
    """Compares all results of ``fn``; returns the graph's text."""
    found, (text,) = compiled(fn, *args, **options)
    every = zip(*map(_flat, (found, fn(*args), exact(fn, args))), strict=True)
    for results in every:
        check(*results)
    return text


def _flat(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def norm(x: Tensor, w: Tensor, bias: Tensor, r: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, bias) + r, (64,), g, b)


def for_norm(*rows: int) -> tuple[Tensor, ...]:
    return half(*rows, 64), half(64, 64), half(64), half(*rows, 64), half(64), half(64)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# --- forms of the op -------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [(), (0,), (0, 1)])
def test_one_output(dynamic: tuple[int, ...]) -> None:
    text = check_all(norm, for_norm(2, 24), dynamic=dynamic)
    assert text.count("comfuse.region_1.t4") == 1
    assert "addmm" not in text
    assert "var_mean" not in text


def test_two_outputs() -> None:
    def fn(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        h = F.linear(x, w) + r
        return h, F.softmax(h, -1)

    assert "comfuse.region_2.t1" in check_all(fn, (half(2, 24, 64), half(64, 64), half(2, 24, 64)))


def test_outputs_beyond_the_fixed_forms() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.linear(x, w)
        return h, h.relu(), h.sum(-1)

    text = check_all(fn, (half(24, 64), half(64, 64)))
    assert "comfuse.region.alone" in text
    assert "comfuse.region_" not in text


def test_operands_beyond_the_fixed_forms() -> None:
    def fn(x: Tensor, w: Tensor, *tiles: Tensor) -> Tensor:
        h = F.linear(x, w)
        for tile in tiles:
            h = h.relu() + tile
        return h

    tiles = [half(24, 64) for _ in range(7)]
    assert "comfuse.region.default" in check_all(fn, (half(24, 64), half(64, 64), *tiles))


def test_vectors_are_outputs() -> None:
    def fn(x: Tensor, w: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        h = F.linear(x, w) * column
        return h.float().sum(-1, keepdim=True), h.float().sum((0, 1))

    check_all(fn, (half(2, 24, 64), half(64, 64), half(2, 24, 1)))


def test_two_products_side_by_side() -> None:
    def fn(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    args = half(2, 24, 64), half(128, 64), half(128, 64)
    for dynamic in ((), (0, 1)):
        text = check_all(fn, args, change=replace_all_in_one, dynamic=dynamic)
        assert "comfuse.region_1.t1" in text


@pytest.mark.parametrize("dynamic", [(), (0,)])
def test_batches(dynamic: tuple[int, ...]) -> None:
    def fn(q: Tensor, k: Tensor) -> Tensor:
        return F.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.25, -1)

    assert "region_1.t0" in check_all(fn, (half(6, 24, 16), half(6, 32, 16)), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [(), (0,), (0, 2)])
@pytest.mark.parametrize("shape", [(4, 1, 1, 24), (4, 1, 10, 24), (1, 3, 10, 24), (3, 10, 24), (3, 1, 24)])
def test_masks_of_a_part_of_the_batches(shape: tuple[int, ...], dynamic: tuple[int, ...]) -> None:
    """Each is read as it lies, whether sequences and rows are symbolic or not."""
    if len(shape) == 3:
        dynamic = (1,) if 2 in dynamic else ()

    def fn(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(*q.shape[:3], 24) + mask, -1)

    q, k = half(4, 3, 10, 16), half(4, 3, 24, 16)
    torch._dynamo.maybe_mark_dynamic(q, [d for d in dynamic if len(shape) == 4])
    text = check_all(fn, (q, k, half(*shape)), dynamic=dynamic)
    assert not re.search(r"clone|aten\.copy", text)


def test_a_weight_of_inner_size_first() -> None:
    def fn(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
        return (x @ w).relu() + r

    assert "region_1.t1" in check_all(fn, (half(24, 64), half(64, 128), half(24, 128)))


# --- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [(), (0,), (0, 1)])
def test_a_tile_with_its_rows_in_another_order(dynamic: tuple[int, ...]) -> None:
    def fn(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
        return F.softmax(F.linear(x, w) + r.transpose(0, 1), -1)

    def change(graph: Graph) -> None:
        (anchor,) = products(graph)
        found = behind(graph, anchor)
        views = [node for node in found.inputs if node.target is aten.reshape.default or _moves_rows(node)]
        read = [i for node in found.inputs for i in (node.all_input_nodes if node in views else [node])]
        inputs = tuple(dict.fromkeys(read))
        replace(graph, lowered(Candidate((anchor,), (*views, *found.nodes), inputs, found.outputs)))

    args = half(24, 2, 64), half(64, 64), half(2, 24, 64)
    text = check_all(fn, args, change=change, dynamic=dynamic)
    assert "comfuse.region_1.t1" in text
    # The tile is a view of three dimensions, and so is A: nothing is copied.
    assert re.search(r"permute\.default\]\(args = \(%arg\d_1, \[1, 0, 2\]\)", text)
    assert not re.search(r"reshape\.default\]\(args = \(%permute", text)


def _moves_rows(node: Node) -> bool:
    return node.target is aten.permute.default and node.args[1] == [1, 0, 2]


@pytest.mark.parametrize("rows", [(1, 5), (5, 1), (3, 7), (48, 11)])
def test_one_graph_for_all_numbers_of_rows(rows: tuple[int, int]) -> None:
    compiles = 0

    def change(graph: Graph) -> None:
        nonlocal compiles
        compiles += 1
        replace_last(graph)

    torch._dynamo.reset()
    fn = torch.compile(norm, backend=interpreted, dynamic=True, fullgraph=True)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=change), torch.no_grad():
        fn(*for_norm(2, 24))
        args = for_norm(*rows)
        check(fn(*args), norm(*args), exact(norm, args))
    # dynamo compiles for a size of 1 by itself, whatever the graph holds
    assert compiles == (2 if 1 in rows else 1)


def test_no_guard_is_added() -> None:
    added = []

    def change(graph: Graph) -> None:
        vals = [node.meta.get("val") for node in graph.nodes]
        (shapes,) = {val.node.shape_env for val in vals if isinstance(val, torch.SymInt)}
        before = len(shapes.guards)
        replace_last(graph)
        added.append([str(guard.expr) for guard in shapes.guards[before:]])

    compiled(norm, *for_norm(2, 24), change=change, dynamic=(0, 1))
    assert added == [[]]


# --- what else reads and writes --------------------------------------------------------------------


def test_results_that_share_memory() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = F.linear(x, w).relu()
        return h, h.view(-1)

    args = half(24, 64), half(64, 64)
    check_all(fn, args)
    (whole, flat), _ = compiled(fn, *args)
    assert whole.data_ptr() == flat.data_ptr()


def test_a_mutated_input_is_read_before() -> None:
    def fn(x: Tensor, w: Tensor, state: Tensor) -> Tensor:
        h = F.linear(x, w) + state
        state.copy_(h)
        return h.relu() + state

    x, w, state = half(24, 64), half(64, 64), half(24, 64)
    expected, after = state.clone(), state.clone()
    result = fn(x, w, expected)
    found, (text,) = compiled(fn, x, w, after)
    assert text.index("copy_") > text.index("comfuse.region")
    torch.testing.assert_close(found, result, rtol=0.02, atol=0.02)
    torch.testing.assert_close(after, expected, rtol=0.02, atol=0.02)


def test_batch_norm_is_two_kernels() -> None:
    linear, batch_norm = torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128)
    layers = torch.nn.Sequential(linear, batch_norm, torch.nn.ReLU()).to(torch.bfloat16)
    other = copy.deepcopy(layers)
    x = half(48, 64)
    found, (text,) = compiled(layers, x)
    assert text.count("call_function[target=torch.ops.comfuse") == 2
    check(found, other(x), copy.deepcopy(other).double()(x.double()))
    torch.testing.assert_close(batch_norm.running_mean, other[1].running_mean, rtol=0.02, atol=0.02)
    torch.testing.assert_close(batch_norm.running_var, other[1].running_var, rtol=0.02, atol=0.02)


def test_readers_of_results_move_behind_the_call() -> None:
    def fn(x: Tensor, w: Tensor, r: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = F.linear(x, w) + r
        return torch.cumsum(h, 0), (h * v).relu()

    def change(graph: Graph) -> None:
        (anchor,) = products(graph)
        whole = behind(graph, anchor)
        nodes = tuple(n for n in whole.nodes if n.target is not aten.cumsum.default)
        outputs = tuple(n for n in nodes if any(user not in nodes for user in n.users))
        replace(graph, lowered(Candidate((anchor,), nodes, whole.inputs, outputs)))

    args = half(24, 64), half(64, 64), half(24, 64), half(24, 64)
    text = check_all(fn, args, change=change)
    assert text.index("comfuse.region_2") < text.index("cumsum")


def test_backward() -> None:
    x, w = half(2, 24, 64).requires_grad_(), half(64, 64)
    g = half(64)

    def fn(x: Tensor, w: Tensor, g: Tensor) -> Tensor:
        return F.linear(F.gelu(x) * g, w)

    _, (_, text) = compiled(fn, x, w, g, grad=True)
    assert "comfuse.region" in text
    found, x.grad = x.grad, None
    fn(x, w, g).float().sum().backward()
    halves = x.grad
    double = x.detach().double().requires_grad_()
    fn(double, w.double(), g.double()).sum().backward()
    check(found, halves, double.grad)


# --- all or nothing --------------------------------------------------------------------------------


def test_the_graph_is_as_it_was_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    texts = []

    def change(graph: Graph) -> None:
        texts.append(str(graph))
        for name in ("_check_same", "sort"):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, _failing_once(getattr(module, name), Broken))
                with pytest.raises(Broken):
                    replace_last(graph)
            graph.lint()
            texts.append(str(graph))

    args = for_norm(2, 24)
    found, _ = compiled(norm, *args, change=change)
    assert texts[0] == texts[1] == texts[2]
    torch.testing.assert_close(found, norm(*args))


def _failing_once(then: Callable[..., None], error: type[Exception]) -> Callable[..., None]:
    calls = 0

    def run(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error
        then(*args)

    return run


def test_what_is_written_between_its_nodes() -> None:
    def change(graph: Graph) -> None:
        (anchor,) = products(graph)
        state = next(
            node for node in graph.nodes if node.op == "placeholder" and node.name.startswith("arg2")
        )
        with graph.inserting_after(anchor):
            write = graph.call_function(aten.copy_.default, (state, state))
        write.meta["val"] = state.meta["val"]
        before = str(graph)
        with pytest.raises(TraceError, match="writes to a tensor between"):
            replace_last(graph)
        assert str(graph) == before
        graph.erase_node(write)

    def fn(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
        return F.linear(x, w).relu() + r

    _, texts = compiled(fn, half(24, 64), half(64, 64), half(24, 64), change=change)
    assert len(texts) == 1
