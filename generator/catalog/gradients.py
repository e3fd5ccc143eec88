"""Gradients of layers whose values between the GEMMs are computed anew."""

from __future__ import annotations

from comfuse.generator.catalog.linear import BACKWARDS, times_slope
from comfuse.generator.catalog.parts import Build, Layouts, activated, affine
from comfuse.generator.errors import SpecError
from comfuse.generator.spec import DType, FusedSpec, Major, Pair

_FROM_RESULT = ("sigmoid", "tanh")  # whose backward formula reads what the activation gave

#: Activations that :func:`middle_gradient` knows the derivatives of.
DERIVATIVES: tuple[str | None, ...] = (None, *BACKWARDS, *_FROM_RESULT)


def middle_gradient(
    h: int,
    k: int,
    n: int,
    dtype: DType,
    *,
    b0: DType | None = None,
    activation: str | None = None,
    w1_major: Major = Major.MN,
    middle: bool = True,
    sums: bool = False,
) -> FusedSpec:
    """Of ``middle = activation(a @ b.T + b0)``, (M, h), whose gradient is ``a1 @ b1.T``: both anew.

    For ``y = middle @ w1.T`` with the gradient dy, (M, n): a1 is dy, and b1 the (h, n) transpose of w1, which
    is contiguous along ``w1_major``.  Outputs are ``d_pre``, the gradient of what the activation read; the
    ``middle``, where it is wanted; and ``d_b0``, (h,) in the dtype of b0, the ``sums`` of d_pre's columns.
    """
    if activation not in DERIVATIVES:
        raise SpecError("activation", f"got {activation!r}, allowed: {', '.join(map(str, DERIVATIVES))}")
    b = Build(h, k, dtype, Layouts(), products=2, second=Pair(n, Major.K, w1_major))
    pre, grad = affine(b, b0, name="pre"), b.gemm(1, "d_middle")
    y = activated(b, pre, activation)
    if activation in _FROM_RESULT:
        d_pre = b.op(f"{activation}_backward", grad, y, name="d_pre")
    else:
        d_pre = grad if activation is None else times_slope(b, activation, grad, pre, name="d_pre")
    b.store("d_pre", d_pre, dtype)
    if middle:
        b.store("middle", y, dtype)
    if sums:
        b.store("d_b0", b.op("col_sum", d_pre, name="sums"), b0 or DType.FP32)
    return b.spec()
