"""Models of GEMMs back to back, and inputs for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

D, H, ROWS = 64, 128, 4096


class EdgeBlock(nn.Module):
    """Of a graph network: messages of the edges from both ends, added to the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3 * D, H), nn.Linear(H, D)
        self.norm = nn.LayerNorm(D)

    def forward(self, edges: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        x = torch.cat([edges, senders, receivers], -1)
        return edges + self.norm(self.second(F.silu(self.first(x))))


class MLP(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, H, bias=bias), nn.Linear(H, D, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x)))


class GatedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(D, H), nn.Linear(D, H), nn.Linear(H, D)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class LowRank(nn.Module):
    """Nothing to fuse behind either GEMM."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, H, bias=False), nn.Linear(H, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class ThreeLayers(nn.Module):
    """The update of edges or nodes as MeshGraphNets has it: two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(D, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, D), nn.LayerNorm(D)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Deep(nn.Module):
    """Two chains one after the other, or one across them: the wider middles save more."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(MLP(), nn.ReLU(), MLP())

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def half(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) / max(parameter.shape[-1], 4) ** 0.5)
    return model.bfloat16().eval().requires_grad_(False)


def rows(*lead: int, columns: int = D) -> Tensor:
    return torch.randn(*lead, columns).bfloat16()


def weights(*columns: int, k: int = D) -> list[Tensor]:
    """Of layers one after the other, each (N, K)."""
    sizes = zip(columns, (k, *columns), strict=False)
    return [(torch.randn(n, before) / before**0.5).bfloat16() for n, before in sizes]


def inputs(model: nn.Module, *lead: int) -> tuple[Tensor, ...]:
    return tuple(rows(*lead) for _ in range(3 if isinstance(model, EdgeBlock) else 1))


def error(y: Tensor, exact: Tensor) -> float:
    """Relative, of all elements together."""
    return float((y.double() - exact).norm() / exact.norm())


MODELS: dict[type[nn.Module], list[tuple[str, ...]]] = {
    EdgeBlock: [("addmm", "addmm_1")],
    MLP: [("addmm", "addmm_1")],
    GatedMLP: [("addmm+addmm_1", "addmm_2")],
    LowRank: [("mm", "mm_1")],
    ThreeLayers: [("addmm", "addmm_1", "addmm_2")],
    Deep: [("addmm", "addmm_1"), ("addmm_2", "addmm_3")],
}
