"""Programs by name: plain specs, built from arguments.  Nothing else in the generator knows of them."""

from __future__ import annotations

from comfuse.generator.catalog.programs import (
    ACTIVATIONS,
    add_rmsnorm,
    gemma_block,
    layernorm,
    linear,
    logsumexp,
    rmsnorm,
    softmax,
)

__all__ = [
    "ACTIVATIONS",
    "add_rmsnorm",
    "gemma_block",
    "layernorm",
    "linear",
    "logsumexp",
    "rmsnorm",
    "softmax",
]
