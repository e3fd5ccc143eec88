"""Linear layer, the backward of an activation, and the sums of the columns, in one kernel."""

from __future__ import annotations

from torch import Tensor

from comfuse.errors import ArgumentError
from comfuse.generator import catalog
from comfuse.generator.spec import Space
from comfuse.ops import autograd
from comfuse.ops.faults import Argument
from comfuse.ops.named import NamedOp

_NAME = "fused_gemm_colsum"


def fused_gemm_colsum(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pre_activation: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """``y = x @ weight.T + bias`` and ``y.sum`` over the rows, as one kernel on Hopper GPUs.

    With an ``activation``, ``y`` is its backward: the gradient of ``pre_activation`` where
    ``x @ weight.T + bias`` is the gradient of ``activation(pre_activation)``.  So, for a layer
    ``activation(h @ w1.T + b1) @ w2.T``, ``fused_gemm_colsum(grad, w2.t(), None, pre, "gelu")`` gives the
    gradients of ``pre = h @ w1.T + b1`` and of ``b1``.

    Everything behind the GEMM is computed in float32 and rounded once, at the store.  The sums are those of
    the values before they are rounded, and always added in the same order.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), x's dtype, as nn.Linear has it.
        bias: (N,).
        pre_activation: (..., N) or what broadcasts to it, or (M, N) with M the product of x's leading sizes;
            given if and only if ``activation`` is.
        activation: None, ``"relu"``, ``"gelu"`` (with erf), ``"gelu_tanh"``, ``"silu"``, ``"mish"``,
            ``"hardswish"`` or ``"softplus"``.

        ``bias`` and ``pre_activation`` may each be bfloat16, float16 or float32.
        ``x`` and ``weight`` may be contiguous along either of their dimensions.  They, and tiles, are copied
        first (counted) where one stride cannot walk their rows or these are not aligned to 16 bytes.

    Returns:
        y, (..., N) in x's dtype, and the sums, (N,) in float32, over all leading dimensions.  If x has no
        rows, y is empty and the sums are 0; if K is 0 the products sum to zero.

    Differentiable, once, but for ``pre_activation``.  Where a gradient is wanted, x, weight and
    pre_activation are kept for the backward.

    Runs torch's own ops, and counts that in ``comfuse.fallbacks``, where the planner refuses the sizes (K not
    a multiple of 8, a row too wide), the GPU is not a Hopper, or nothing can be compiled.  CPU tensors are
    computed in float32, which is not counted.

    Under torch.autocast, x and weight are converted to its dtype unless they already have one 16-bit dtype.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument that the op cannot take.
        GradientError: ``pre_activation`` requires a gradient, or a gradient is differentiated again.
        BuildError, LoadError, LaunchError: the kernel does not compile, or cannot be run.
        CacheError, ToolchainError: nothing can be built and ``COMFUSE_JIT`` is require.
        FallbackError: it would fall back and ``COMFUSE_STRICT`` is 1.
    """
    if (activation is None) != (pre_activation is None):
        missing = "pre_activation" if pre_activation is None else "activation"
        other = "activation" if pre_activation is None else "pre_activation"
        raise ArgumentError(_NAME, missing, "None", f"a value where {other} has one")
    return _OP(x, weight, (bias, pre_activation), (activation,))


_OP = NamedOp(
    _NAME,
    catalog.colsum,
    [Argument("bias", Space.ROW), Argument("pre_activation", Space.TILE)],
    autograd.colsum,
    options={"activation": (None, *catalog.BACKWARDS)},
    outputs=2,
)
