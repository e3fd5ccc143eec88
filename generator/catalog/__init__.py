"""Programs by name: plain specs, built from arguments.  Nothing else in the generator knows of them.

Everywhere: ``n``, ``k`` and ``dtype`` are the GEMM's; an operand's argument is its dtype, or None to leave it
out; ``out`` is the dtype of tile outputs and defaults to ``dtype``; ``layouts`` says how the tensors lie.
Operands come in the order of the arguments, with ``residual`` after what it is added to; run-time scalars
come last.
"""

from __future__ import annotations

from comfuse.generator.catalog.chains import attention, b2b, mlp
from comfuse.generator.catalog.gradients import DERIVATIVES, middle_gradient
from comfuse.generator.catalog.linear import ACTIVATIONS, BACKWARDS, colsum, gated, linear
from comfuse.generator.catalog.norms import add_rmsnorm, gemma_block, layernorm, rmsnorm
from comfuse.generator.catalog.parts import Layouts
from comfuse.generator.catalog.quantize import LARGEST, quantize
from comfuse.generator.catalog.softmax import cross_entropy, logits_gradient, logsumexp, softmax

__all__ = [
    "ACTIVATIONS",
    "BACKWARDS",
    "DERIVATIVES",
    "LARGEST",
    "Layouts",
    "add_rmsnorm",
    "attention",
    "b2b",
    "colsum",
    "cross_entropy",
    "gated",
    "gemma_block",
    "layernorm",
    "linear",
    "logits_gradient",
    "logsumexp",
    "middle_gradient",
    "mlp",
    "quantize",
    "rmsnorm",
    "softmax",
]
