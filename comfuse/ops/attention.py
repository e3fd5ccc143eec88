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
from comfuse.ops.faults import AB_DTYPES, FLOATS, autocast_dtype, of_layout, of_scalars
from comfuse.ops.memory import collapse
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
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(q @ k.mT * scale + bias) @ v``, as one kernel on Hopper GPUs.

    Scores and their softmax are computed in float32 and never leave the chip.  What meets ``v`` is rounded
    once, to q's dtype, before it is divided by its row's sum; the result is rounded at the store.  A row
    whose scores are all -inf is NaN, but 0 where torch's attention runs.

    Args:
        q: (..., M, D), bfloat16 or float16.
        k: (..., H, D), q's leading sizes and dtype.
        v: (..., H, N), k's leading sizes and dtype.
        bias: what broadcasts to (..., M, H); bfloat16, float16 or float32.  It is added: a mask is -inf where
            a score does not count.  Or bool: True where one counts, as for torch's own attention.
        causal: whether row m sees the columns up to m only.  All scores are computed nevertheless.
        scale: of the scores; None: 1 / sqrt(D).
        enable_gqa: whether k and v may have fewer heads than q: the last of their leading sizes divides q's,
            and each serves that many neighbouring heads of q.

    Under torch.autocast, q, k and v are converted to its dtype unless they already have one 16-bit dtype.

    Of k, v and the bias, leading sizes that two strides walk are read in place, such as (sequences, heads) in
    any order, and so is what repeats over some of them, or a bias over the rows.  Tensors are copied first
    (counted) where that does not do, where one stride cannot walk q's leading sizes, where rows or columns
    are not contiguous (the columns of a bias of one column, too), or rows are not aligned to 16 bytes.

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
    fault = _fault(q, k, v, bias, enable_gqa) or of_scalars(_NAME, {} if scale is None else {"scale": scale})
    if fault is not None:
        raise fault
    dtype = autocast_dtype((q, k, v))
    if dtype is not None:
        q, k, v = (t.to(dtype) for t in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    given = [t for t in (q, k, v, bias) if t is not None]
    if in_forward_mode():
        refuse_tangents(_NAME, given)
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        _count_gradient()
        return _with_gradient(q, k, v, bias, causal, scale)
    lead, (m, d), (h, n) = q.shape[:-2], q.shape[-2:], v.shape[-2:]
    operands = [_batched("v", _for_heads(v, lead)).mT]
    bias_dtype, repeats = None, False
    if bias is not None:
        bias = bias[(None,) * (q.ndim - bias.ndim)]
        if bias.stride(-2) == 0:  # as it was before someone expanded it
            bias = bias[..., :1, :]
        operands.insert(0, _batched("bias", bias.expand(*lead, -1, -1)))
        bias_dtype = bias.dtype
        # A comparison of symbols is no boolean.
        repeats = True if bias.shape[-2] != m or bias.shape[-1] != h else False  # noqa: SIM210
    text = _text(index(n), index(d), index(h), q.dtype, bias_dtype, repeats, causal)
    try:
        y: Tensor = FIXED[1][len(operands)](
            text, _batched("q", q, levels=1), _batched("k", _for_heads(k, lead)), *operands, scale
        )
    except RuntimeError as e:
        raise translate(e, _NAME) from None
    return y.reshape(*lead, m, n)


# --- leading sizes -----------------------------------------------------------------------------------------


def _for_heads(x: Tensor, lead: torch.Size) -> Tensor:
    """Keys or values for each of q's heads: (..., heads, heads of q that one serves, H, N), repeated."""
    if x.shape[:-2] == lead:
        return x
    served = lead[-1] // x.shape[-3]
    return x.unsqueeze(-3).expand(*x.shape[:-2], served, *x.shape[-2:])


def _batched(name: str, x: Tensor, levels: int = 2) -> Tensor:
    """With all leading sizes in one, or in ``levels`` where that many strides are needed to walk them."""
    found = _in_levels(x, levels)
    if found is None:
        _count_copy(name, levels)
        once = [slice(0, 1) if stride == 0 else slice(None) for stride in x.stride()[:-2]]
        x = x[tuple(once)].contiguous().expand(x.shape)
        found = _in_levels(x, levels)
    return x.reshape(x.shape[:-2].numel(), *x.shape[-2:]) if found is None else found


def _in_levels(x: Tensor, levels: int) -> Tensor | None:
    """The same as a view; None if there is none."""
    sizes, matrix = x.shape[:-2], x.shape[-2:]
    walks = list(zip(sizes, x.stride(), strict=False))
    if len(collapse(walks)) <= 1:
        return x.view(sizes.numel(), *matrix)
    for cut in range(1, len(walks) if levels > 1 else 1):
        if len(collapse(walks[:cut])) <= 1 and len(collapse(walks[cut:])) <= 1:
            return x.view(sizes[:cut].numel(), sizes[cut:].numel(), *matrix)
    return None


@constant_when_traced
def _count_copy(name: str, levels: int) -> bool:
    walk = "one stride does not walk" if levels == 1 else "two strides do not walk"
    fallbacks.note(_NAME, f"{name} copied: {walk} its leading sizes")
    return True


# --- what runs ---------------------------------------------------------------------------------------------


@constant_when_traced
def _text(
    n: int, d: int, h: int, dtype: torch.dtype, bias: torch.dtype | None, repeats: bool, causal: bool
) -> str:
    """The text of a call's chain; ``repeats``: the bias does over rows or columns."""
    of_bias: DType | None = None if bias is None else SPEC_DTYPES[bias]
    strided = ("bias",) if repeats else ()
    chain = catalog.attention(n, d, h, AB_DTYPES[dtype], bias=of_bias, causal=causal, strided=strided)
    return called(chain.text(), _NAME)


@constant_when_traced
def _count_gradient() -> bool:
    fallbacks.record(_NAME, "a gradient is wanted: torch's scaled_dot_product_attention runs")
    return True


def _with_gradient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> Tensor:
    mask = None if bias is None else torch.atleast_2d(bias)
    if mask is not None and mask.dtype is not torch.bool:
        mask = mask.to(q.dtype)
    if mask is not None and causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = mask & seen if mask.dtype is torch.bool else torch.where(seen, mask, -torch.inf)
        causal = False
    gqa = {"enable_gqa": True} if k.shape[:-2] != q.shape[:-2] else {}
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, **gqa)


# --- what is wrong with the arguments -----------------------------------------------------------------------


def _fault(q: Any, k: Any, v: Any, bias: Any, enable_gqa: bool) -> ArgumentError | None:
    given = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
    for name, t in given.items():
        if not isinstance(t, Tensor):
            return ArgumentError(_NAME, name, f"of type {type(t).__name__}", "a torch.Tensor")
        fault = of_layout(_NAME, name, t)
        if fault is not None:
            return fault
    fault = _of_factors(q, k, v, enable_gqa)
    if fault is None and bias is not None:
        whole = (*q.shape[:-1], k.shape[-2])
        sizes = zip(reversed(bias.shape), reversed(whole), strict=False)
        if bias.ndim > len(whole) or any(size not in (1, of_whole) for size, of_whole in sizes):
            return ShapeError(_NAME, "bias", f"of shape {tuple(bias.shape)}", f"what broadcasts to {whole}")
    return fault or _of_kinds(q, given)


def _of_factors(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> ArgumentError | None:
    if q.ndim < 2:
        return ShapeError(_NAME, "q", f"of shape {tuple(q.shape)}", "(..., M, D)")
    lead, d = tuple(q.shape[:-2]), q.shape[-1]
    for name, t, sizes in (("q", q, "(..., M, D)"), ("k", k, "(..., H, D)"), ("v", v, "(..., H, N)")):
        if 0 in t.shape[-1 if name == "q" else -2 :]:
            return ShapeError(_NAME, name, f"of shape {tuple(t.shape)}", f"{sizes}, D, H and N at least 1")
    of_k = tuple(k.shape[:-2]) if k.ndim >= 2 else ()
    serves = len(of_k) == len(lead) > 0 and of_k[:-1] == lead[:-1] and of_k[-1] > 0
    grouped = serves and lead[-1] % of_k[-1] == 0
    if k.ndim < 2 or k.shape[-1] != d or (of_k != lead and not (grouped and enable_gqa)):
        allowed = f"(..., H, D) with q's leading sizes {lead} and D = {d}"
        if enable_gqa:
            allowed += f", or as the last of {lead} what divides it"
        todo = (
            "enable_gqa=True lets heads serve several of q's" if grouped and k.shape[-1] == d else "expand it"
        )
        return ShapeError(_NAME, "k", f"of shape {tuple(k.shape)}", allowed, todo)
    if v.ndim != k.ndim or v.shape[:-1] != k.shape[:-1]:
        allowed = f"(..., H, N) with k's {of_k} and H = {k.shape[-2]}"
        return ShapeError(_NAME, "v", f"of shape {tuple(v.shape)}", allowed, "expand it")
    return None


def _of_kinds(q: Tensor, given: dict[str, Tensor]) -> ArgumentError | None:
    factors = [t for name, t in given.items() if name != "bias"]
    converted = autocast_dtype(factors) is not None
    if q.dtype not in AB_DTYPES and not converted:
        return DTypeError(_NAME, "q", str(q.dtype), "torch.bfloat16, torch.float16")
    for name, t in given.items():
        allowed_dtypes = (*FLOATS, torch.bool) if name == "bias" else FLOATS if converted else (q.dtype,)
        if t.dtype not in allowed_dtypes:
            allowed = ", ".join(map(str, allowed_dtypes))
            return DTypeError(_NAME, name, str(t.dtype), allowed, "convert it")
        if t.device != q.device:
            return DeviceError(_NAME, name, f"on {t.device}", f"q's device, {q.device}", "move it there")
    return None
