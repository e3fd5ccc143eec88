"""The gradients of the named ops.

Each function here is an op with a gradient, for :class:`comfuse.ops.named.NamedOp`: a torch.autograd.Function
whose forward is the op's own fused kernel, which stores what the backward reads as further outputs.  The
docstring of each Function says what is kept from one to the other and what the backward runs.
"""

from __future__ import annotations

from comfuse.ops.autograd.colsum import colsum
from comfuse.ops.autograd.gated import gated
from comfuse.ops.autograd.layernorm import layernorm
from comfuse.ops.autograd.linear import linear
from comfuse.ops.autograd.middle import b2b, mlp
from comfuse.ops.autograd.rmsnorm import rmsnorm
from comfuse.ops.autograd.softmax import cross_entropy, logsumexp, softmax

__all__ = [
    "b2b",
    "colsum",
    "cross_entropy",
    "gated",
    "layernorm",
    "linear",
    "logsumexp",
    "mlp",
    "rmsnorm",
    "softmax",
]
