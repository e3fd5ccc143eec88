"""Rows that are turned behind a GEMM, and ahead of it where that costs no copy: attention, batches first."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from comfuse.inductor import log
from comfuse.inductor.entrances import enable
from comfuse.inductor.turn import turn_rows
from tests.inductor.graphs import Builder, found, no_fast_path
from tests.inductor.interpreted import interpreted

aten = torch.ops.aten

WIDTH, HEADS, WIDE = 64, 4, 128


def encoder_layer(p: float = 0.0, activation: str = "relu") -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, WIDE, p, activation, batch_first=True)
    for parameter in layer.parameters():  # biases are zero else, and those of attention are tested too
        nn.init.normal_(parameter, std=0.2)
    return layer.to(torch.bfloat16)


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


@pytest.fixture(autouse=True)
def _slow_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    torch._dynamo.reset()
    log.clear()
    with no_fast_path():
        yield


def check(values: Any, eager: Any, exact: Any) -> None:
    for value, near, truth in zip(values, eager, exact, strict=True):
        allowed = 2 * (near.double() - truth).abs().max()
        assert (value.double() - truth).abs().max() <= allowed


# --- models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_encoder_layer_in_inference(dynamic: bool) -> None:
    (graph,) = found(encoder_layer().eval(), half(3, 24, WIDTH), dynamic=dynamic)
    norm = "addmm add var_mean sub add rsqrt mul mul add"
    assert graph.regions == {"addmm": norm, "addmm_1+addmm_2": f"addmm relu {norm}"}
    assert [*graph.left] == ["mm"]
    assert graph.new_guards == 0


@pytest.mark.parametrize("masked", [False, True])
def test_values_for_any_sizes(masked: bool) -> None:
    model = encoder_layer().eval()
    compiled = torch.compile(model, backend=interpreted, fullgraph=True, dynamic=True)
    for batches, length in [(3, 24), (5, 7), (24, 3)]:
        x = half(batches, length, WIDTH)
        padding = torch.arange(length).expand(batches, length) > length - 2 if masked else None
        with torch.no_grad(), enable(force=True):
            values = compiled(x, src_key_padding_mask=padding)
            exact = copy.deepcopy(model).double()(x.double(), src_key_padding_mask=padding)
            check([values], [model(x, src_key_padding_mask=padding)], [exact])
    (verdicts,) = log.compiles()  # one graph for all of them
    assert [v.fused for v in verdicts] == [True] * 4, "forced, also the first with its bias"


@pytest.mark.parametrize("batches, length", [(1, 16), (16, 1), (16, 16)])
def test_sizes_that_look_alike(batches: int, length: int) -> None:
    model, x = encoder_layer().eval(), half(batches, length, WIDTH)
    with torch.no_grad(), enable(force=True):
        values = torch.compile(model, backend=interpreted, fullgraph=True, dynamic=False)(x)
        check([values], [model(x)], [copy.deepcopy(model).double()(x.double())])
    assert [v.fused for v in log.verdicts()][1:] == [True] * 3


def gradients(model: nn.Module, run: Any, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = run(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
    found = [y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]
    model.zero_grad()
    return found


def test_in_training_rows_that_are_stored_stay() -> None:
    model, x = encoder_layer(), half(3, 24, WIDTH)
    exact = copy.deepcopy(model).double()
    with enable(force=True):
        values = gradients(model, torch.compile(model, backend=interpreted, fullgraph=True), x)
    check(values, gradients(model, model, x), gradients(exact, exact, x.double()))
    forward, backward = log.compiles()
    assert [v.anchor for v in forward if v.fused] == ["mm", "addmm_1", "addmm_2"]
    assert sum(v.fused for v in backward) == 2
    (left,) = (v for v in forward if not v.fused)
    assert left.anchor == "addmm"
    assert "the graph returns attention's queries or its result" in left.reason
    (turned,) = (v.reason for v in backward if "rows are read in another order" in v.reason)
    assert "its left factor is read in this order by others: mm" in turned


def test_dropout_draws_what_inductor_alone_draws() -> None:
    """With gelu, as the gradient of relu jumps; without dropout each would be half as far from float64."""
    x, plain, model = half(3, 24, WIDTH), encoder_layer(0.0, "gelu"), encoder_layer(0.1, "gelu")
    exact = gradients(*[copy.deepcopy(plain).double()] * 2, x.double())
    bounds = [
        4 * (e.double() - d).abs().max() for e, d in zip(gradients(plain, plain, x), exact, strict=True)
    ]
    results = []
    for context in (enable(force=True), torch.enable_grad()):
        torch._dynamo.reset()
        with context:
            torch.manual_seed(5)
            results.append(gradients(model, torch.compile(model, backend=interpreted, fullgraph=True), x))
    for fused, alone, bound in zip(*results, bounds, strict=True):
        assert (fused.double() - alone.double()).abs().max() <= bound
    assert len(log.compiles()) == 2
    assert {"addmm_1", "addmm_2"} <= {v.anchor for v in log.verdicts() if v.fused}


class Attended(nn.Module):
    """Attention of x to itself or to others, the residual and a norm."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.weights = weights
        nn.init.normal_(self.attention.in_proj_bias)
        nn.init.normal_(self.attention.out_proj.bias)

    def forward(self, x: Tensor, others: Tensor | None = None) -> Tensor:
        others = x if others is None else others
        return self.norm(x + self.attention(x, others, others, need_weights=self.weights)[0])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_attention_of_any_kind(weights: bool, crossed: bool, dynamic: bool) -> None:
    model = Attended(weights).to(torch.bfloat16).eval()
    inputs = (half(3, 24, WIDTH), half(3, 10, WIDTH))[: 1 + crossed]
    (graph,) = found(model, *inputs, dynamic=dynamic)
    assert graph.regions["addmm"] == "addmm add var_mean sub add rsqrt mul mul add"
    assert graph.new_guards == 0
    torch._dynamo.reset()
    with torch.no_grad(), enable(force=True):
        values = torch.compile(model, backend=interpreted, fullgraph=True, dynamic=dynamic)(*inputs)
        exact = copy.deepcopy(model).double()(*(x.double() for x in inputs))
        check([values], [model(*inputs)], [exact])
    assert [v.fused for v in log.verdicts() if v.anchor == "addmm"] == [True]


# --- rules ----------------------------------------------------------------------------------------------

S, B = 6, 8
contiguous = {"memory_format": torch.contiguous_format}


def turned(make: Builder, left: Node, added: tuple[int, ...] = (WIDE,)) -> Node:
    """``addmm`` on rows (S, B), and its result with the rows (B, S)."""
    y = make.call(aten.addmm.default, make.input(*added), left, make.input(WIDTH, WIDE))
    return make.call(aten.permute.default, make.call(aten.reshape.default, y, [S, B, WIDE]), [1, 0, 2])


def copied(make: Builder) -> tuple[Node, Node]:
    """An (S, B, K) copy of a (B, S, K) tensor, and its rows."""
    x = make.call(aten.permute.default, make.input(B, S, WIDTH), [1, 0, 2])
    x = make.call(aten.clone.default, x)
    rows = make.graph.call_function(aten.clone.default, (x,), contiguous)
    rows.meta["val"] = x.meta["val"].contiguous()
    return rows, make.call(aten.reshape.default, rows, [S * B, WIDTH])


def check_traced(graph: Graph) -> None:
    """Whether each value is what running its node gives, with the same strides."""
    graph.lint()
    for node in graph.nodes:
        if node.op == "call_function":
            args, kwargs = map_arg((node.args, node.kwargs), lambda i: i.meta["val"])
            traced = node.target(*args, **kwargs)
            if isinstance(traced, Tensor):
                assert node.meta["val"].shape == traced.shape
                assert node.meta["val"].stride() == traced.stride()


def reason(graph: Graph) -> str:
    before = str(graph)
    (found,) = turn_rows(graph).values()
    assert str(graph) == before
    return found


def test_a_copy_for_the_gemm_alone_is_made_in_the_other_order() -> None:
    make = Builder()
    y = turned(make, copied(make)[1])
    graph = make.output(make.call(aten.add.Tensor, make.input(B, S, WIDE), y))
    assert turn_rows(graph) == {}
    check_traced(graph)
    (addmm,) = graph.find_nodes(op="call_function", target=aten.addmm.default)
    (add,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    assert add.args[1].target is aten.reshape.default
    assert add.args[1].args[0] is addmm
    assert addmm.args[1].args[0].meta["val"].shape[:2] == (B, S)


ATTENTION = {
    aten._scaled_dot_product_flash_attention.default: (),
    aten._scaled_dot_product_efficient_attention.default: (None, False),
    aten._scaled_dot_product_cudnn_attention.default: (None, False),
}


@pytest.mark.parametrize("attention", ATTENTION, ids=str)
def test_attention_of_gpus_takes_no_copy_more(attention: Any) -> None:
    make = Builder()
    packed = make.call(aten.permute.default, make.input(S, B, 3, WIDTH), [2, 0, 1, 3])
    stored = make.graph.call_function(aten.clone.default, (packed,), contiguous)
    stored.meta["val"] = packed.meta["val"].contiguous()
    heads = []
    for i in range(3):
        x = make.call(aten.select.int, stored, 0, i)
        x = make.call(aten.reshape.default, x, [S, B * HEADS, WIDTH // HEADS])
        x = make.call(aten.permute.default, x, [1, 0, 2])
        heads.append(make.call(aten.reshape.default, x, [B, HEADS, S, WIDTH // HEADS]))
    several = make.graph.call_function(attention, (*heads, *ATTENTION[attention]))
    several.meta["val"] = attention(*(x.meta["val"] for x in heads), *ATTENTION[attention])
    result = make.call(operator.getitem, several, 0)
    rows = make.call(aten.permute.default, result, [2, 0, 1, 3])
    y = turned(make, make.call(aten.reshape.default, rows, [S * B, WIDTH]))
    graph = make.output(make.call(aten.add.Tensor, make.input(B, S, WIDE), y))
    assert turn_rows(graph) == {}
    check_traced(graph)
    for node in graph.nodes:
        if node.target is aten.reshape.default:
            node.args[0].meta["val"].view(node.meta["val"].shape)  # raises where it would be a copy
    assert sum(node.target is aten.clone.default for node in graph.nodes) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_what_others_read_is_not_copied_twice(which: int) -> None:
    make = Builder()
    x = make.call(aten.permute.default, make.input(S, WIDTH, B), [0, 2, 1])
    kept = make.graph.call_function(aten.clone.default, (x,), contiguous)
    kept.meta["val"] = x.meta["val"].contiguous()
    rows = make.call(aten.reshape.default, kept, [S * B, WIDTH])
    y = make.call(aten.relu.default, turned(make, rows))
    y = make.call(aten.add.Tensor, make.input(B, S, WIDE), y)
    assert reason(make.output(y, (kept, rows)[which])).endswith(
        "in this order by others: the graph's results"
    )


def test_rows_of_what_is_added_stay_where_they_are() -> None:
    make = Builder()
    y = turned(make, copied(make)[1], (S * B, WIDE))
    y = make.call(aten.add.Tensor, make.input(B, S, WIDE), y)
    assert "added" in reason(make.output(y))


def test_results_keep_their_strides() -> None:
    make = Builder()
    y = make.call(aten.relu.default, turned(make, copied(make)[1]))
    assert y.meta["val"].stride() != y.meta["val"].contiguous().stride()
    assert "returns" in reason(make.output(y))


def test_a_left_factor_that_is_in_place_is_not_copied() -> None:
    make = Builder()
    rows = make.call(aten.reshape.default, make.input(S, B, WIDTH), [S * B, WIDTH])
    y = make.call(aten.add.Tensor, make.input(B, S, WIDE), turned(make, rows))
    assert "would have to be copied" in reason(make.output(y))
