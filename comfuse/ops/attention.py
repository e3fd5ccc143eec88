"""Attention as a chain of two batched GEMMs in one kernel."""

from __future__ import annotations

from operator import index
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import fallbacks
from comfuse.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from comfuse.generator import catalog
from comfuse.generator.spec import DType
from comfuse.ops.faults import AB_DTYPES, FLOATS, of_layout, of_scalars
from comfuse.ops.programs import called
from comfuse.ops.resolver import translate
from comfuse.ops.schema import FIXED
from comfuse.ops.tracing import constant_when_traced
from comfuse.ops.transforms import in_forward_mode, refuse_tangents
from comfuse.reference import SPEC_DTYPES

_NAME = "fused_attention"


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``softmax(q @ k.mT * scale + bias) @ v``, as one kernel on Hopper GPUs.

    Scores and their softmax are computed in float32 and never leave the chip.  What meets ``v`` is rounded
    once, to q's dtype, before it is divided by its row's sum; the result is rounded at the store.  A row
    whose scores are all -inf is NaN, but 0 where torch's attention runs.

    Args:
        q: (..., M, D), bfloat16 or float16.
        k: (..., H, D), q's leading sizes and dtype.
        v: (..., H, N), q's leading sizes and dtype.
        bias: (M, H), or (..., M, H) with q's leading sizes; bfloat16, float16 or float32.  It is added: a
            mask is -inf where a score does not count.
        causal: whether row m sees the columns up to m only.  All scores are computed nevertheless.
        scale: of the scores; None: 1 / sqrt(D).

        Tensors are copied first (counted) where rows or columns are not contiguous, one stride cannot walk
        the leading sizes, or rows are not aligned to 16 bytes.

    Returns:
        (..., M, N), q's dtype.

    Differentiable: where a gradient is wanted, torch's scaled_dot_product_attention runs, which is counted in
    ``comfuse.fallbacks``.

    Runs a kernel for each GEMM or torch's own ops, counted too, where the planner refuses the sizes (one that
    is no multiple of 8, N beyond 256), ``COMFUSE_CHAINS`` is 0, the GPU is not a Hopper or nothing can be
    compiled.  CPU tensors are computed in float32, which is not counted.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument that the op cannot take.
        BuildError, LoadError, LaunchError: the kernel does not compile, or cannot be run.
        CacheError, ToolchainError: nothing can be built and ``COMFUSE_JIT`` is require.
        FallbackError: it would fall back and ``COMFUSE_STRICT`` is 1.
    """
    fault = _fault(q, k, v, bias) or of_scalars(_NAME, {} if scale is None else {"scale": scale})
    if fault is not None:
        raise fault
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    given = [t for t in (q, k, v, bias) if t is not None]
    if in_forward_mode():
        refuse_tangents(_NAME, given)
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        _count_gradient()
        return _with_gradient(q, k, v, bias, causal, scale)
    lead, (m, d), (h, n) = q.shape[:-2], q.shape[-2:], v.shape[-2:]
    bias_dtype = None if bias is None else bias.dtype
    text = _text(index(n), index(d), index(h), q.dtype, bias_dtype, causal)
    operands = [_batched(v).mT]
    if bias is not None:
        operands.insert(0, bias if bias.ndim == 2 else _batched(bias))
    try:
        y: Tensor = FIXED[1][len(operands)](text, _batched(q), _batched(k), *operands, scale)
    except RuntimeError as e:
        raise translate(e, _NAME) from None
    return y.reshape(*lead, m, n)


def _batched(x: Tensor) -> Tensor:
    """With all leading sizes in one."""
    return x.reshape(x.shape[:-2].numel(), *x.shape[-2:])


@constant_when_traced
def _text(n: int, d: int, h: int, dtype: torch.dtype, bias: torch.dtype | None, causal: bool) -> str:
    """The text of a call's chain."""
    of_bias: DType | None = None if bias is None else SPEC_DTYPES[bias]
    chain = catalog.attention(n, d, h, AB_DTYPES[dtype], bias=of_bias, causal=causal)
    return called(chain.text(), _NAME)


@constant_when_traced
def _count_gradient() -> bool:
    fallbacks.record(_NAME, "a gradient is wanted: torch's scaled_dot_product_attention runs")
    return True


def _with_gradient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> Tensor:
    if bias is None or not causal:
        mask = None if bias is None else bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)
    seen = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).tril()
    return F.scaled_dot_product_attention(
        q, k, v, bias.to(q.dtype).masked_fill(~seen, -torch.inf), scale=scale
    )


def _fault(q: Any, k: Any, v: Any, bias: Any) -> ArgumentError | None:
    """What is wrong with the arguments."""
    given = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
    for name, t in given.items():
        if not isinstance(t, Tensor):
            return ArgumentError(_NAME, name, f"of type {type(t).__name__}", "a torch.Tensor")
        fault = of_layout(_NAME, name, t)
        if fault is not None:
            return fault
    if q.ndim < 2:
        return ShapeError(_NAME, "q", f"of shape {tuple(q.shape)}", "(..., M, D)")
    lead, m, d = tuple(q.shape[:-2]), q.shape[-2], q.shape[-1]
    for name, t, sizes in (("q", q, "(..., M, D)"), ("k", k, "(..., H, D)"), ("v", v, "(..., H, N)")):
        if 0 in t.shape[-1 if name == "q" else -2 :]:
            return ShapeError(_NAME, name, f"of shape {tuple(t.shape)}", f"{sizes}, D, H and N at least 1")
    h = k.shape[-2] if k.ndim >= 2 else 0
    shapes = {
        "k": (k, (*lead, h, d), f"(..., H, D) with q's leading sizes {lead} and D = {d}"),
        "v": (v, (*lead, h, v.shape[-1] if v.ndim else 0), f"(..., H, N) with q's {lead} and k's H = {h}"),
    }
    if bias is not None:
        wanted = (m, h) if bias.ndim == 2 else (*lead, m, h)
        shapes["bias"] = (bias, wanted, f"{(m, h)} or {(*lead, m, h)}")
    for name, (t, wanted, allowed) in shapes.items():
        if tuple(t.shape) != wanted:
            return ShapeError(_NAME, name, f"of shape {tuple(t.shape)}", allowed, "expand it")
    if q.dtype not in AB_DTYPES:
        return DTypeError(_NAME, "q", str(q.dtype), "torch.bfloat16, torch.float16")
    for name, t in given.items():
        allowed_dtypes = FLOATS if name == "bias" else (q.dtype,)
        if t.dtype not in allowed_dtypes:
            allowed = ", ".join(map(str, allowed_dtypes))
            return DTypeError(_NAME, name, str(t.dtype), allowed, "convert it")
        if t.device != q.device:
            return DeviceError(_NAME, name, f"on {t.device}", f"q's device, {q.device}", "move it there")
    return None
