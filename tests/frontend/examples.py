"""Six functions with little in common but that each is one kernel."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

HEAD = 64


def masked_softmax(x: Tensor, w: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """Probabilities over the columns that a bool mask leaves: one pass for maximum and sum."""
    scores = (F.linear(x, w) / temperature).masked_fill(~mask, -math.inf)
    return torch.softmax(scores, -1)


def swiglu_norm(x: Tensor, w: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Two products from one stacked weight, their gated product, and RMSNorm of the sum; both stored."""
    gate, up = F.linear(x, w).chunk(2, -1)
    h = F.silu(gate) * up + residual
    return h, F.rms_norm(h, (h.shape[-1],), weight, 1e-6)


def norm_to_fp8(x: Tensor, w: Tensor, bias: Tensor, weight: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """LayerNorm, then the largest of each row, then fp8: three phases, nothing in between stored."""
    h = F.layer_norm(F.linear(x, w, bias), (w.shape[0],), weight, shift).float()
    scale = h.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (h / scale).to(torch.float8_e4m3fn), scale.squeeze(-1)


def gelu_backward(grad: Tensor, w: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient through a linear layer and a GELU, and that of the bias in front: a sum over the rows.

    ``w`` is the layer's weight as it is: the product contracts its first dimension.
    """
    d = torch.ops.aten.gelu_backward(grad @ w, pre)
    return d, d.flatten(0, -2).sum(0)


def queries(x: Tensor, w: Tensor, weight: Tensor) -> Tensor:
    """A projection, RMSNorm of each head, and the heads in front of the sequence, contiguous."""
    q = F.linear(x, w).unflatten(-1, (-1, HEAD))
    return F.rms_norm(q, (HEAD,), weight, 1e-6).transpose(1, 2).contiguous()


def cross_entropy(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """The loss of each row; the logits are never stored."""
    return F.cross_entropy(F.linear(x, w), target, ignore_index=-1, reduction="none")
