"""The region finder on the graphs that TorchInductor makes of models: the regions by their operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.inductor.graphs import found, no_fast_path

WIDTH, WIDE = 64, 128


def half(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Gated(nn.Module):
    """The second half of a Llama block, or with ``after`` that of a Gemma block."""

    def __init__(self, act: str, after: bool) -> None:
        super().__init__()
        self.norm, self.after, self.act = RMSNorm(), RMSNorm() if after else nn.Identity(), act
        self.gate, self.up = nn.Linear(WIDTH, WIDE, False), nn.Linear(WIDTH, WIDE, False)
        self.down = nn.Linear(WIDE, WIDTH, False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        gate = self.gate(h)
        active = F.silu(gate) if self.act == "silu" else F.gelu(gate, approximate="tanh")
        return x + self.after(self.down(active * self.up(h)))


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.second(F.silu(self.first(x))))


def encoder_layer(p: float) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 4, WIDE, p).to(torch.bfloat16)


def batch_norm_mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU()).to(torch.bfloat16)


@pytest.fixture(autouse=True)
def _slow_path() -> Iterator[None]:
    with no_fast_path():
        yield


def test_encoder_layer_in_inference() -> None:
    (graph,) = found(encoder_layer(0.1).eval(), half(24, 2, WIDTH))
    norm = "addmm add var_mean sub add rsqrt mul mul add"
    assert graph.regions == {"addmm_1": norm, "addmm_2+addmm_3": f"addmm relu {norm}"}
    assert all(len(outputs) == 1 for outputs in graph.outputs.values())
    assert list(graph.left) == ["addmm"]
    assert "attention" in graph.left["addmm"]


def test_encoder_layer_in_training() -> None:
    forward, backward = found(encoder_layer(0.1), half(24, 2, WIDTH).requires_grad_(), train=True)
    norm = "addmm mul mul add var_mean add rsqrt sub mul mul add"
    assert forward.regions == {"addmm_1": norm, "addmm_2": "addmm relu mul mul le", "addmm_3": norm}
    # The dropout mask is stored for the backward pass, and read: one byte where its random numbers are four.
    first = forward.candidates[0]
    assert torch.bool in [node.meta["val"].dtype for node in first.inputs]
    # Gradient of the input, the residual's added, through the first norm and its dropout, with column sums.
    assert backward.regions["mm_2"].startswith(
        "mm add mul mul add sub mul mul mul sum mul sum mul sub sub div"
    )
    assert backward.regions["mm"] == "mm mul mul where sum"
    assert backward.left["mm_1"].startswith("nothing to fuse behind it")
    assert "float32" in backward.left["bmm_2"]


def test_rows_may_be_symbolic() -> None:
    forward, backward = found(encoder_layer(0.1), half(24, 2, WIDTH), train=True, dynamic=True)
    assert [*forward.regions] == ["addmm_1", "addmm_2", "addmm_3"]
    assert [*backward.regions] == ["mm", "mm_2"]
    assert "symbolic" in backward.left["mm_1"]
    assert forward.new_guards == backward.new_guards == 0


@pytest.mark.parametrize("act, after", [("silu", False), ("gelu", True)])
def test_gate_and_value_are_one_region(act: str, after: bool) -> None:
    (graph,) = found(Gated(act, after).to(torch.bfloat16), half(48, WIDTH))
    assert [*graph.regions] == ["mm+mm_1+mm_2"]
    assert graph.left == {}
    gated, last = graph.candidates[0].links
    assert [len(link.anchors) for link in (gated, last)] == [2, 1]
    assert len(gated.outputs) == 1
    behind = "mm pow mean add rsqrt mul mul add" if after else "mm add"
    assert graph.regions["mm+mm_1+mm_2"].endswith(f" mul {behind}")


def test_gated_layer_in_training() -> None:
    forward, backward = found(Gated("silu", False).bfloat16(), half(48, WIDTH).requires_grad_(), train=True)
    assert len(forward.outputs["mm+mm_1"]) == 3, "both products are stored for the backward pass"
    # The activation is computed again, from the products, inside the region that needs its slope.
    slope = "mul sub mul add mul"
    assert backward.regions["mm_4"] in (
        f"mm neg exp add div mul mul sigmoid {slope}",
        f"mm neg exp add div mul mul reciprocal mul {slope}",  # torch 2.11 writes the logistic function out
    )
    inputs = {candidate.anchors[0].name: candidate.inputs for candidate in backward.candidates}
    assert {"mm", "mm_1"} < {node.name for node in inputs["mm_4"]}
    # The sum of two products goes to the later; the earlier enters as a tile.
    assert "mm_6" in {node.name for node in inputs["mm_8"]}
    (later,) = (c for c in backward.candidates if c.anchors[0].name == "mm_8")
    reasons = {
        f"nothing to fuse behind it: {node}: it is fused with another matrix product" for node in later.nodes
    }
    assert backward.left["mm_6"] in reasons


def test_graph_network() -> None:
    (graph,) = found(GraphNetwork().to(torch.bfloat16), half(100, WIDTH))
    assert graph.regions == {
        "addmm+addmm_1": "addmm neg exp add div addmm var_mean sub add rsqrt mul mul add add"
    }
    _, backward = found(GraphNetwork().bfloat16(), half(100, WIDTH).requires_grad_(), train=True)
    product = backward.regions.pop("mm")
    assert product in (  # the latter in torch 2.11
        "mm sigmoid mul sub mul add mul sum",
        "mm neg exp add reciprocal mul mul sub mul add mul sum",
    )
    assert backward.regions == {"mm_2": "mm add"}


def test_autocast_folds_its_casts() -> None:
    x = torch.randn(100, WIDTH, requires_grad=True)
    forward, backward = found(GraphNetwork(), x, train=True, autocast=True)
    assert [*forward.regions] == ["addmm", "addmm_1"]
    assert [*backward.regions] == ["mm", "mm_2"]
    (_, last) = backward.candidates
    assert [node.meta["val"].dtype for node in last.outputs] == [torch.float32]


def test_batch_norm_repeats_a_cheap_gemm() -> None:
    forward, _ = found(batch_norm_mlp(64), half(32, 64), train=True)
    assert forward.regions["addmm"].startswith("addmm var_mean add rsqrt sub mul")
    assert "relu" in forward.regions["addmm"]


def test_batch_norm_ends_at_the_statistics_of_a_dear_gemm() -> None:
    forward, _ = found(batch_norm_mlp(2048), half(32, 2048), train=True)
    assert forward.regions["addmm"].startswith("addmm var_mean")
    assert not {"sub", "relu"} & set(forward.regions["addmm"].split())
    forced, _ = found(batch_norm_mlp(2048), half(32, 2048), train=True, force=True)
    assert "relu" in forced.regions["addmm"].split()
