"""A whole MLP in one kernel: two layers, a gate, a residual and a norm."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from torch import Tensor

from comfuse.errors import ArgumentError
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import DType, Space
from comfuse.ops import autograd
from comfuse.ops.autograd import ways
from comfuse.ops.autograd.function import spread
from comfuse.ops.faults import Argument
from comfuse.ops.gated import fused_gated_gemm
from comfuse.ops.layernorm import fused_gemm_layernorm
from comfuse.ops.linear import fused_gemm
from comfuse.ops.named import NamedOp
from comfuse.ops.rmsnorm import fused_gemm_rmsnorm

_NAME = "fused_mlp"
Norm = Literal["layernorm", "rmsnorm"]
Position = Literal["before", "after"]


def fused_mlp(
    x: Tensor,
    w0: Tensor,
    b0: Tensor | None = None,
    w1: Tensor | None = None,
    b1: Tensor | None = None,
    activation: str | None = "gelu",
    *,
    w_gate: Tensor | None = None,
    b_gate: Tensor | None = None,
    norm: Norm | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    residual: Tensor | None = None,
    residual_position: Position = "before",
    eps: float = 1e-5,
) -> Tensor:
    """``norm(middle @ w1.T + b1 + residual) * norm_weight + norm_bias``, as one kernel on Hopper GPUs.

    ``middle`` is ``activation(x @ w0.T + b0)``, or with a gate ``activation(x @ w_gate.T + b_gate) * (x @
    w0.T + b0)`` (SwiGLU with ``"silu"``).  It never leaves the chip and is rounded once, to x's dtype.  All
    else is computed in float32, and the result rounded at the store.

    Args:
        x: (..., K), bfloat16 or float16.
        w0: (H, K), x's dtype, as nn.Linear has it.
        b0: (H,).
        w1: (N, H), x's dtype; it has to be given.
        b1: (N,).
        activation: None, or the name of an elementwise op of one argument, as for :func:`fused_gemm`.
        w_gate: (H, K), x's dtype.
        b_gate: (H,), with ``w_gate`` only.
        norm: None, ``"layernorm"`` or ``"rmsnorm"``, over each row of N values.
        norm_weight: (N,), with a norm only.
        norm_bias: (N,), with ``"layernorm"`` only.
        residual: (..., N) or what broadcasts to it, or (M, N) with M the product of x's leading sizes.
        residual_position: added ``"before"`` the norm, or to its result (``"after"``).
        eps: added to the variance, or to the mean of the squares.

        Biases, the norm's vectors and the residual may each be bfloat16, float16 or float32.  ``x``, the
        weights and the residual are copied first (counted) where their rows are not contiguous, one stride
        cannot walk these, or they are not aligned to 16 bytes.  The residual may be x: one kernel of both
        layers reads that once, where its slots for operands hold whole rows.

    Returns:
        (..., N), x's dtype.  It is empty if x has no rows; if K is 0 the products of x sum to zero.

    Differentiable, once, in either of two ways.  Nothing is kept of the middle: the backward runs a fused
    kernel that computes it anew beside its gradient, and plain GEMMs; of what is behind the middle, a norm
    keeps what it read.  Or the ops of one layer run instead of the one kernel (:func:`fused_gemm` or
    :func:`fused_gated_gemm`, then :func:`fused_gemm`, :func:`fused_gemm_layernorm` or
    :func:`fused_gemm_rmsnorm`), and keep what these keep: the middle is stored.  The cost model chooses by
    the sizes (``COMFUSE_RECOMPUTE``); the second way is always that of a gate, and of an activation but
    None, ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"mish"``, ``"hardswish"``, ``"softplus"``,
    ``"sigmoid"`` and ``"tanh"``.

    Runs a kernel for each layer, and counts that in ``comfuse.fallbacks``, where the planner refuses the
    sizes (one that is no multiple of 8, N beyond 256, weights too large to pass through the chip for every
    block of rows) or ``COMFUSE_CHAINS`` is 0; torch's own ops, counted too, where the GPU is not a Hopper or
    nothing can be compiled.  CPU tensors are computed in float32, which is not counted.

    Under torch.autocast, x and the weights are converted to its dtype unless they already have one 16-bit
    dtype.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument that the op cannot take.
        GradientError: a gradient is differentiated again.
        BuildError, LoadError, LaunchError: the kernel does not compile, or cannot be run.
        CacheError, ToolchainError: nothing can be built and ``COMFUSE_JIT`` is require.
        FallbackError: it would fall back and ``COMFUSE_STRICT`` is 1.
    """
    if w_gate is None:
        _refuse("b_gate", b_gate, "there is no w_gate")
    if norm is None:
        _refuse("norm_weight", norm_weight, "there is no norm")
    if norm != "layernorm":
        _refuse("norm_bias", norm_bias, "the norm is no layernorm")
    outer = (w1, b1, residual, norm_weight, norm_bias)
    options, scalars = (activation, norm, residual_position), () if norm is None else (eps,)
    if w_gate is None:
        return _PLAIN(x, w0, (b0, *outer), options, scalars)  # type: ignore[no-any-return]
    return _GATED(x, w_gate, (w0, b_gate, b0, *outer), options, scalars)  # type: ignore[no-any-return]


def _refuse(name: str, given: Any, why: str) -> None:
    if given is not None:
        raise ArgumentError(_NAME, name, "given", f"None, as {why}")


def _plain(x: Tensor, w0: Tensor, b0: Tensor | None, *rest: Any) -> Tensor:
    w1, *outer, activation, norm, position = rest[:8]
    way = ways.way_of(x, w0, b0, w1, *outer, activation, norm, position)
    if way == ways.KEPT:
        return _outer(fused_gemm(x, w0, b0, activation), *rest)
    eps = rest[8] if len(rest) > 8 else 0.0
    chain = way == ways.ANEW_CHAIN
    return autograd.mlp(x, w0, b0, w1, *outer, activation, norm, position, eps, chain)


def _gated(
    x: Tensor, w_gate: Tensor, w0: Tensor, b_gate: Tensor | None, b0: Tensor | None, *rest: Any
) -> Tensor:
    activation = rest[5]
    return _outer(fused_gated_gemm(x, w_gate, w0, b_gate, b0, activation), *rest)


def _outer(
    middle: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    activation: str | None,
    norm: Norm | None,
    position: Position,
    eps: float = 0.0,
) -> Tensor:
    if norm is None:
        return fused_gemm(middle, w1, b1, None, residual)
    if norm == "rmsnorm":
        return fused_gemm_rmsnorm(middle, w1, b1, residual, norm_weight, eps, residual_position=position)
    before = residual if position == "before" else None
    y = fused_gemm_layernorm(middle, w1, b1, before, norm_weight, norm_bias, eps)
    if residual is None or position == "before":
        return y
    return (y + spread(residual, y)).to(y.dtype)


def _program(n: int, k: int, h: int, dtype: DType, *, layouts: catalog.Layouts, **rest: Any) -> ChainSpec:
    return catalog.mlp(n, k, h, dtype, strided=layouts.strided, **rest)


_OUTER = (
    Argument("w1", None, required=True, begins_layer=True),
    Argument("b1", Space.ROW),
    Argument("residual", Space.TILE),
    Argument("norm_weight", Space.ROW),
    Argument("norm_bias", Space.ROW),
)
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "activation": (None, *catalog.ACTIVATIONS),
    "norm": (None, "layernorm", "rmsnorm"),
    "residual_position": ("before", "after"),
}
_PLAIN = NamedOp(
    _NAME,
    _program,
    [Argument("b0", Space.ROW), *_OUTER],
    _plain,
    weight="w0",
    options=_OPTIONS,
    scalars=("eps",),
    saved=2,
)
_GATED = NamedOp(
    _NAME,
    partial(_program, gated=True),
    [
        Argument("w0", None, required=True),
        Argument("b_gate", Space.ROW),
        Argument("b0", Space.ROW),
        *_OUTER,
    ],
    _gated,
    weight="w_gate",
    options=_OPTIONS,
    scalars=("eps",),
    variant="with a gate",
)
