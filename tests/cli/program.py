"""Functions that the tests name on the command line."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import comfuse


def layer_norm(x, w, bias, eps=1e-5):
    h = F.linear(x, w, bias)
    return F.layer_norm(h, (h.shape[-1],), eps=eps)


@comfuse.fuse
def fused(x, w):
    return F.gelu(F.linear(x, w))


def two_products(x, w, w2):
    h = torch.relu(F.linear(x, w))
    return F.linear(h, w2), h  # h would have to be stored


def by_name(x, *, w):
    return F.gelu(F.linear(x, w))


MODEL = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.LayerNorm(1024)).bfloat16()

VERSION = 1
