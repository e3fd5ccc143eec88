"""Linear layers: with an activation, gated, and with the sums of their columns."""

from __future__ import annotations

from comfuse.generator.catalog.parts import PLAIN, Build, Layouts, activated, affine
from comfuse.generator.errors import SpecError
from comfuse.generator.ops import ELEMENTWISE, FAST
from comfuse.generator.spec import DType, FusedSpec

ACTIVATIONS: tuple[str, ...] = tuple(
    op.name for op in ELEMENTWISE.values() if op.arity == 1 and op.name not in FAST
)

#: Activations whose backward formula reads what the activation read.
BACKWARDS: tuple[str, ...] = (
    "relu", "gelu", "gelu_tanh", "silu", "mish", "hardswish", "softplus",
)  # fmt: skip


def linear(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    activation: str | None = None,
    residual: DType | None = None,
    out: DType | None = None,
    layouts: Layouts = PLAIN,
    saved: bool = False,
) -> FusedSpec:
    """``y = activation(a @ b.T + bias) + residual``; ``activation`` is any of :data:`ACTIVATIONS`.

    ``saved``: also ``pre``, what the activation read.
    """
    check_activation(activation)
    b = Build(n, k, dtype, layouts)
    pre = affine(b, bias)
    y = activated(b, pre, activation)
    if residual is not None:
        y = b.op("add", y, b.tile("residual", residual), name="y")
    b.store("y", y, out or dtype)
    if saved:
        b.store("pre", pre, dtype)
    return b.spec()


def gated(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias_gate: DType | None = None,
    bias_up: DType | None = None,
    activation: str | None = "silu",
    out: DType | None = None,
    layouts: Layouts = PLAIN,
    saved: bool = False,
) -> FusedSpec:
    """``y = activation(a @ b.T + bias_gate) * (a @ b1.T + bias_up)``, two products of one A.

    ``saved``: also ``gate``, what the activation read, and ``up``, the second factor.
    """
    check_activation(activation)
    b = Build(n, k, dtype, layouts, products=2)
    gate, up = b.gemm(0, "gate"), b.gemm(1, "up")
    if bias_gate is not None:
        gate = b.op("add", gate, b.row("bias_gate", bias_gate))
    if bias_up is not None:
        up = b.op("add", up, b.row("bias_up", bias_up))
    b.store("y", b.op("mul", activated(b, gate, activation), up, name="y"), out or dtype)
    if saved:
        b.store("gate", gate, dtype)
        b.store("up", up, dtype)
    return b.spec()


def colsum(
    n: int,
    k: int,
    dtype: DType,
    *,
    bias: DType | None = None,
    pre_activation: DType | None = None,
    activation: str | None = None,
    out: DType | None = None,
    layouts: Layouts = PLAIN,
) -> FusedSpec:
    """``y = a @ b.T + bias`` and ``sums``, float32 of shape (N,): the sum of each of its columns.

    With an ``activation``, any of :data:`BACKWARDS`, and a tile ``pre_activation``: ``y`` is the gradient of
    what the activation read, where ``a @ b.T + bias`` is the gradient of what it gave.
    """
    if (activation is None) != (pre_activation is None):
        raise SpecError("activation", "an activation and a pre_activation need each other")
    if activation is not None and activation not in BACKWARDS:
        raise SpecError("activation", f"got {activation!r}, allowed: {', '.join(BACKWARDS)}")
    b = Build(n, k, dtype, layouts)
    y = affine(b, bias)
    if activation is not None and pre_activation is not None:
        y = times_slope(b, activation, y, b.tile("pre_activation", pre_activation), name="y")
    b.store("y", y, out or dtype)
    return b.stored("sums", b.op("col_sum", y, name="sums"), DType.FP32)


def times_slope(b: Build, activation: str, grad: int, pre: int, *, name: str) -> int:
    """``grad`` times the derivative at ``pre`` of an activation of :data:`BACKWARDS`."""
    if activation == "relu":
        return b.op("where", b.op("gt", pre, b.const(0.0)), grad, b.const(0.0), name=name)
    return b.op(f"{activation}_backward", grad, pre, name=name)


def check_activation(activation: str | None) -> None:
    if activation is not None and activation not in ACTIVATIONS:
        raise SpecError("activation", f"got {activation!r}, allowed: {', '.join(ACTIVATIONS)}")
