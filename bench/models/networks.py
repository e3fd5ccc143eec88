"""Models that need nothing but torch: an encoder layer, a graph network's edges, a click predictor's MLP."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from bench.models.base import Model, Size


def rows(size: Size) -> tuple[Tensor]:
    """(rows, width), of unit variance."""
    return (torch.randn(size.batch, size.width),)


def sequences(size: Size) -> tuple[Tensor]:
    """(batch, tokens, width), of unit variance."""
    return (torch.randn(size.batch, size.tokens, size.width),)


def _encoder_layer(size: Size) -> nn.Module:
    """The layer of "Attention Is All You Need": norms behind the residual sums, relu, dropout 0.1.

    In torch's default layout: with batches first, attention would turn them round, to and fro.  In inference
    torch runs it as one opaque operator, unless its fast path is off: see
    ``torch.backends.mha.set_fastpath_enabled``.
    """
    return nn.TransformerEncoderLayer(size.width, size.heads, size.inner)


def _batches_last(size: Size) -> tuple[Tensor]:
    """(tokens, batch, width), of unit variance."""
    return (torch.randn(size.tokens, size.batch, size.width),)


class EdgeUpdate(nn.Module):
    """The update of a graph network's edges from what was gathered for each: MLP, LayerNorm, residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(size.width, size.inner),
            nn.SiLU(),
            nn.Linear(size.inner, size.width),
            nn.LayerNorm(size.width),
        )

    def forward(self, edges: Tensor) -> Tensor:
        """(edges, width) to the same."""
        return edges + self.mlp(edges)


class TopMlp(nn.Module):
    """DLRM's top MLP with BatchNorm behind each product: inner, inner, inner / 2, inner / 4, one logit."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        widths = [size.width, size.inner, size.inner, size.inner // 2, size.inner // 4]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, features: Tensor) -> Tensor:
        """(rows, width) to (rows, 1)."""
        return self.mlp(features)


NETWORKS = (
    Model(
        "encoder_layer", "Transformer base layer, post-norm", _encoder_layer, _batches_last,
        small=Size(2, 24, 64, 128, heads=4),
        middle=Size(8, 256, 512, 2048, heads=8),
        real=Size(32, 512, 512, 2048, heads=8),
        dropout=True,
    ),
    Model(
        "graph_network", "graph network, edge update", EdgeUpdate, rows,
        small=Size(100, 1, 64, 64),
        middle=Size(20_000, 1, 128, 128),
        real=Size(1_000_000, 1, 128, 128),
    ),
    Model(
        "dlrm_mlp", "DLRM top MLP, BatchNorm", TopMlp, rows,
        small=Size(96, 1, 48, 64),
        middle=Size(2048, 1, 480, 512),
        real=Size(32_768, 1, 480, 1024),
    ),
)  # fmt: skip
