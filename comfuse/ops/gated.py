"""Two linear layers of one input, the one gating the other, in one kernel."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from comfuse.errors import ArgumentError, ShapeError
from comfuse.generator import catalog
from comfuse.generator.spec import Space
from comfuse.ops import autograd
from comfuse.ops.faults import Argument
from comfuse.ops.named import NamedOp

_NAME = "fused_gated_gemm"


def fused_gated_gemm(
    x: Tensor,
    weight_gate: Tensor,
    weight_up: Tensor | None = None,
    bias_gate: Tensor | None = None,
    bias_up: Tensor | None = None,
    activation: str | None = "silu",
    layout: Literal["separate", "stacked", "interleaved"] | None = None,
) -> Tensor:
    """``activation(x @ weight_gate.T + bias_gate) * (x @ weight_up.T + bias_up)``, as one kernel on Hoppers.

    With ``"silu"`` SwiGLU, with ``"gelu"`` GeGLU, with ``"relu"`` ReGLU, with ``"sigmoid"`` GLU (Shazeer,
    "GLU Variants Improve Transformer", 2020).  Both products are read by one kernel that loads x once;
    everything behind them is computed in float32 and rounded once, at the store.

    Args:
        x: (..., K), bfloat16 or float16.
        weight_gate: (N, K), x's dtype; or (2 N, K) with the rows of both weights, if ``weight_up`` is None.
        weight_up: (N, K), x's dtype.
        bias_gate: (N,); or (2 N,) with both biases, laid out as the rows of the one weight.
        bias_up: (N,).
        activation: None, or the name of an elementwise op of one argument, as for :func:`fused_gemm`.
        layout: ``"separate"``: two weights.  With one, ``"stacked"``: all rows of the gate, then all of the
            other; ``"interleaved"``: a row of the gate, a row of the other, and so on.  None: separate where
            there is a ``weight_up``, stacked otherwise.

        The biases may each be bfloat16, float16 or float32.  The halves of one weight are read in place.
        ``x`` and the weights may be contiguous along either of their dimensions.  They are copied first
        (counted) where one stride cannot walk their rows or these are not aligned to 16 bytes.

    Returns:
        (..., N), x's dtype.  It is empty if x has no rows; if K is 0 the products sum to zero.

    Differentiable, once.  Where a gradient is wanted, x and the weights are kept for the backward, and both
    factors of the product, the first before its activation: two (..., N) in x's dtype.

    Runs torch's own ops, and counts that in ``comfuse.fallbacks``, where the planner refuses the sizes (K not
    a multiple of 8, a row too wide), the GPU is not a Hopper, or nothing can be compiled.  CPU tensors are
    computed in float32, which is not counted.

    Under torch.autocast, x and the weights are converted to its dtype unless they already have one 16-bit
    dtype.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument that the op cannot take.
        GradientError: a gradient is differentiated again.
        BuildError, LoadError, LaunchError: the kernel does not compile, or cannot be run.
        CacheError, ToolchainError: nothing can be built and ``COMFUSE_JIT`` is require.
        FallbackError: it would fall back and ``COMFUSE_STRICT`` is 1.
    """
    if layout is None:
        layout = "stacked" if weight_up is None else "separate"
    gate, up = _halves(weight_gate, weight_up, "weight", layout)
    gate_bias, up_bias = _halves(bias_gate, bias_up, "bias", layout)
    return _OP(x, gate, (up, gate_bias, up_bias), (activation,))


def _halves(gate: Any, up: Any, what: str, layout: str) -> tuple[Any, Any]:
    if layout == "separate":
        return gate, up
    if layout not in ("stacked", "interleaved"):
        raise ArgumentError(_NAME, "layout", repr(layout), "None, 'separate', 'stacked', 'interleaved'")
    if up is not None:
        raise ArgumentError(_NAME, f"{what}_up", "given", f"None, as the layout is {layout!r}")
    if gate is None:
        return None, None
    if not isinstance(gate, Tensor):
        raise ArgumentError(_NAME, f"{what}_gate", f"of type {type(gate).__name__}", "a torch.Tensor")
    rows = gate.shape[0] if gate.ndim > 0 else 1
    if rows % 2:
        allowed = f"an even first dimension, as the layout is {layout!r}"
        raise ShapeError(_NAME, f"{what}_gate", f"of shape {tuple(gate.shape)}", allowed)
    # Their gradients become one tensor again by a single copy.
    if layout == "stacked":
        return gate.view(2, rows // 2, *gate.shape[1:]).unbind(0)
    return gate.view(rows // 2, 2, *gate.shape[1:]).unbind(1)


_OP = NamedOp(
    _NAME,
    catalog.gated,
    [
        Argument("weight_up", None, required=True),
        Argument("bias_gate", Space.ROW),
        Argument("bias_up", Space.ROW),
    ],
    autograd.gated,
    weight="weight_gate",
    options={"activation": (None, *catalog.ACTIVATIONS)},
    saved=2,
)
