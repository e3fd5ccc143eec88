"""Two layers of any size, three of them, and the chains of the golden files: name -> chain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.catalog import chains, linear
from comfuse.generator.catalog.parts import Build, Layouts, layer_norm
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import DType, FusedSpec, Space

BF16, FP16, FP32 = DType.BF16, DType.FP16, DType.FP32


def mlp(k: int, h: int, n: int, **keywords: Any) -> ChainSpec:
    return chains.mlp(n, k, h, BF16, **{"b0": BF16, "b1": BF16, "activation": "gelu_tanh", **keywords})


def scored(n: int, k: int, h: int, dtype: DType) -> ChainSpec:
    """All kinds of operands between the GEMMs; behind them a vector and statistics of rows, also alone."""
    b = SpecBuilder(h, k, dtype)
    scale = b.op("mul", b.load("row_scale", Space.COLUMN, FP32), b.load("temperature", Space.SCALAR))
    x = b.op("mul", b.gemm(), scale, name="scaled")
    x = b.op("add", x, b.load("score_bias", Space.TILE, dtype), name="biased")
    x = b.op("where", b.op("ge", b.row_index(), b.column_index()), x, b.const(0.0, "zero"), name="seen")
    x = b.op("mul", x, b.op("sigmoid", b.op("mul", x, b.load("slope", Space.ROW, FP32))), name="p")
    b.output("p", x, dtype)
    out = SpecBuilder(n, h, dtype)
    y = out.op("mul", out.gemm(), out.load("row_scale", Space.COLUMN, FP32), name="y")
    out.output("y", y, dtype)
    out.output("y_wide", y, FP32)
    out.output("peak", out.op("row_max", out.op("abs", y), name="peak"), FP32)
    return ChainSpec((b.spec(), out.spec()))


def normed(n: int, k: int, h: int, dtype: DType) -> ChainSpec:
    """A LayerNorm between the GEMMs."""
    b = Build(h, k, dtype, Layouts())
    x = b.op("add", b.gemm(), b.row("b0", dtype), name="x")
    weight, bias = b.row("norm_weight", dtype), b.row("norm_bias", dtype)
    p, _, _ = layer_norm(b, x, weight, bias, b.scalar("eps"))
    return ChainSpec((b.stored("p", p, dtype), linear(n, h, dtype, bias=dtype)))


def three_layers(k: int, h0: int, h1: int, n: int, dtype: DType = BF16, **last: Any) -> ChainSpec:
    """An MLP of two hidden layers, as graph networks have it; ``last``: of :func:`catalog.mlp`, for what is
    behind, but ``activation`` is that of both hidden layers.
    """
    activation = last.setdefault("activation", "relu")

    def hidden(number: int, n: int, k: int) -> FusedSpec:
        b = Build(n, k, dtype, Layouts())
        x = b.op("add", b.gemm(), b.row(f"b{number}", dtype), name=f"x{number}")
        return b.stored(f"middle{number}", b.op(activation, x, name=f"h{number}"), dtype)

    _, outer = chains.mlp(n, h1, h1, dtype, b1=dtype, **last).links
    renamed = tuple(replace(o, name="b2") if o.name == "b1" else o for o in outer.operands)
    nodes = tuple(replace(node, name="b2") if node.name == "b1" else node for node in outer.nodes)
    return ChainSpec((hidden(0, h0, k), hidden(1, h1, h0), replace(outer, operands=renamed, nodes=nodes)))


def edge_network(n: int = 128, activation: str = "relu") -> ChainSpec:
    """The edge update of MeshGraphNets, with a residual."""
    return three_layers(
        n, n, n, n, activation=activation, norm="layernorm", norm_weight=BF16, norm_bias=BF16, residual=BF16,
        residual_position="after",
    )  # fmt: skip


#: With reductions between the GEMMs.
DEFERRED: dict[str, ChainSpec] = {
    "chain_attention": chains.attention(64, 64, 512, BF16, bias=BF16),
    "chain_causal": chains.attention(128, 128, 8192, FP16, causal=True),
    "chain_normed": normed(128, 128, 512, BF16),
}
CHAINS: dict[str, ChainSpec] = DEFERRED | {
    "chain_mlp_gelu": chains.mlp(128, 128, 512, BF16, b0=BF16, b1=BF16),
    "chain_edge_mlp": chains.mlp(
        128, 128, 128, BF16, b0=BF16, b1=BF16, residual=BF16, norm="layernorm", norm_weight=BF16,
        norm_bias=BF16, activation="silu",
    ),
    "chain_streamed": chains.mlp(256, 256, 1024, BF16, b0=BF16, b1=BF16, activation="gelu_tanh"),
    "chain_gated": chains.mlp(128, 128, 256, FP16, gated=True, activation="silu"),
    "chain_narrow": chains.b2b(64, 64, 256, BF16, b0=FP32, activation0="relu"),
    "chain_scored": scored(96, 72, 200, BF16),
    "chain_edge_network": edge_network(),
}  # fmt: skip
