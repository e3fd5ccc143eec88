"""Parts of the named ops out of torch's own: what runs where gradients are wanted.  All in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse.reference import ELEMENTWISE


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias + residual``."""
    y = F.linear(x, weight).float()
    return plus(y if bias is None else y + bias, residual)


def plus(y: Tensor, addend: Tensor | None) -> Tensor:
    """``y`` and a tile that may be flattened or broadcast."""
    return y if addend is None else y + tile(addend, y)


def tile(operand: Tensor, y: Tensor) -> Tensor:
    """A tile operand, which may be flattened, in a shape that broadcasts to y's."""
    return operand.reshape(y.shape) if operand.numel() == y.numel() else operand


def activated(x: Tensor, activation: str | None) -> Tensor:
    return x if activation is None else ELEMENTWISE[activation](x)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    scale = None if weight is None else weight.float()
    shift = None if bias is None else bias.float()
    return F.layer_norm(x, x.shape[-1:], scale, shift, eps)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    y = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return y if weight is None else y * (weight.float() + weight_offset)
