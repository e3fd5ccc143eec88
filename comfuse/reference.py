"""The meaning of a FusedSpec, in torch: what CPU tensors run, and what kernels are tested against.

Everything between load and store is computed in one dtype (float32, or float64 for an oracle); values are
rounded once, at the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from comfuse.errors import ArgumentError
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Node, Space

Tensor = torch.Tensor

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.FP32: torch.float32,
}
SPEC_DTYPES: dict[torch.dtype, DType] = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def _compare(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: function(a, b).to(a.dtype)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))  # F.softplus is linear beyond its threshold


def _sign(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)  # torch.sign(nan) is nan on some devices


#: One torch function for each elementwise row of comfuse.generator.ops.
ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "square": torch.square,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "pow": torch.pow,
    "relu": torch.relu,
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, x * slope),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": _softplus,
    "sign": _sign,
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
    "eq": _compare(torch.eq),
    "ne": _compare(torch.ne),
    "lt": _compare(torch.lt),
    "le": _compare(torch.le),
    "gt": _compare(torch.gt),
    "ge": _compare(torch.ge),
    "logical_and": _compare(torch.logical_and),
    "logical_or": _compare(torch.logical_or),
    "logical_not": lambda x: torch.logical_not(x).to(x.dtype),
}


def _welford(x: Tensor) -> dict[str, Tensor]:
    mean = x.mean(dim=-1, keepdim=True)
    return {"mean": mean, "var": (x - mean).square().mean(dim=-1, keepdim=True)}


#: One torch function for each row reduction, from an (M, N) tensor to its fields, each (M, 1).
REDUCTIONS: dict[str, Callable[[Tensor], dict[str, Tensor]]] = {
    "row_sum": lambda x: {"value": x.sum(dim=-1, keepdim=True)},
    "row_max": lambda x: {"value": x.amax(dim=-1, keepdim=True)},
    "row_min": lambda x: {"value": x.amin(dim=-1, keepdim=True)},
    "row_sumsq": lambda x: {"value": (x * x).sum(dim=-1, keepdim=True)},
    "row_welford": _welford,
}


def evaluate(
    spec: FusedSpec,
    a: Tensor,
    b: Tensor,
    operands: Sequence[Tensor] = (),
    scalars: Sequence[float] = (),
    *,
    dtype: torch.dtype = torch.float32,
    round_outputs: bool = True,
) -> list[Tensor]:
    """Runs ``spec`` on tensors of any device.

    Args:
        a: (..., K).
        b: (N, K).
        operands: the non-scalar operands in the order of the spec: (..., N) with a's leading sizes or (M, N)
            for a tile, N elements for a row vector, M elements for a column vector.
        scalars: the scalar operands in the order of the spec.
        dtype: what is computed in: ``torch.float32``, or ``torch.float64`` for an oracle.
        round_outputs: give outputs in the dtypes of the spec; False leaves them in ``dtype``.

    Returns:
        One tensor an output: a's leading sizes and N for a tile, a's leading sizes for a column vector.

    Raises:
        ArgumentError: too few or too many operands or scalars, or one of the wrong size.
    """
    leading = a.shape[:-1]
    m, n = leading.numel(), spec.n
    _check("a", a, a.ndim >= 1 and a.shape[-1] == spec.k, f"(..., {spec.k})")
    _check("b", b, tuple(b.shape) == (n, spec.k), f"({n}, {spec.k})")
    with torch.autocast(a.device.type, enabled=False):
        loaded = _load(spec, m, operands, scalars, a.device, dtype)
        values: list[Tensor | dict[str, Tensor]] = []
        for node in spec.nodes:
            if node.op == "gemm":
                values.append(_gemm(a.reshape(m, spec.k), b, dtype))
            else:
                values.append(_node(node, values, loaded, (m, n), dtype, a.device))
        results = []
        for output in spec.outputs:
            value = values[output.node]
            assert isinstance(value, Tensor), f"output {output.name} is a reduction with several fields"
            if spaces(spec)[output.node] is Space.COLUMN:
                value = value.expand(m, 1).reshape(leading)
            else:
                value = value.expand(m, n).reshape(*leading, n)
            results.append(value.to(TORCH_DTYPES[output.dtype]) if round_outputs else value)
    return results


def _node(
    node: Node,
    values: Sequence[Tensor | dict[str, Tensor]],
    loaded: Sequence[Tensor],
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | dict[str, Tensor]:
    inputs = [values[i] for i in node.inputs]
    if node.op == "load":
        assert node.operand is not None
        return loaded[node.operand]
    if node.op == "const":
        return torch.tensor(node.value, dtype=dtype, device=device)
    if node.op == "field":
        (fields,) = inputs
        assert isinstance(fields, dict)
        assert node.field is not None
        return fields[node.field]
    if node.op in REDUCTIONS:
        (x,) = inputs
        assert isinstance(x, Tensor)
        fields = REDUCTIONS[node.op](x.expand(shape))
        return fields.get("value", fields)
    return ELEMENTWISE[node.op](*inputs)


def _gemm(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    if a.is_cuda and dtype is torch.float32 and a.dtype is not torch.float32 and a.numel() and b.numel():
        return torch.mm(a, b.t(), out_dtype=torch.float32)  # on the tensor cores, not rounded in between
    return a.to(dtype) @ b.to(dtype).t()


def _load(
    spec: FusedSpec,
    m: int,
    operands: Sequence[Tensor],
    scalars: Sequence[float],
    device: torch.device,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Operands in the order of the spec as (M, N), (N,), (M, 1) or () tensors of ``dtype``."""
    scalar_count = sum(operand.space is Space.SCALAR for operand in spec.operands)
    tensor_count = len(spec.operands) - scalar_count
    if len(operands) != tensor_count:
        raise ArgumentError("reference", "operands", f"{len(operands)} tensors", f"{tensor_count} tensors")
    if len(scalars) != scalar_count:
        raise ArgumentError("reference", "scalars", f"{len(scalars)} values", f"{scalar_count} values")
    tensors, numbers = iter(operands), iter(scalars)
    loaded = []
    for operand in spec.operands:
        if operand.space is Space.SCALAR:
            loaded.append(torch.tensor(float(next(numbers)), dtype=dtype, device=device))
            continue
        tensor = next(tensors)
        shape = {Space.TILE: (m, spec.n), Space.ROW: (spec.n,), Space.COLUMN: (m, 1)}[operand.space]
        expected = {Space.TILE: f"{m} x {spec.n}", Space.ROW: str(spec.n), Space.COLUMN: str(m)}[
            operand.space
        ]
        _check(operand.name, tensor, tensor.numel() == torch.Size(shape).numel(), f"{expected} elements")
        loaded.append(tensor.reshape(shape).to(dtype))
    return loaded


def _check(name: str, tensor: Tensor, ok: bool, allowed: str) -> None:
    if not ok:
        raise ArgumentError("reference", name, f"a tensor of shape {tuple(tensor.shape)}", allowed)
