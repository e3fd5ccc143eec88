"""Every operator of the table, alone, against torch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from comfuse.frontend.capture import capture
from comfuse.frontend.handlers import CONSTANTS, ELEMENTWISE, REDUCTIONS
from tests.frontend.support import N, check, residual, row, weight, x

aten = torch.ops.aten

UNARY = {
    "abs": torch.abs,
    "alpha add": lambda h: torch.add(h, h, alpha=3),
    "alpha add scalar": lambda h: torch.add(h, 2.0, alpha=3),
    "alpha sub": lambda h: torch.sub(h, h * h, alpha=3),
    "alpha sub scalar": lambda h: torch.sub(h, 2.0, alpha=3),
    "celu": lambda h: F.celu(h, 0.5),
    "clamp": lambda h: h.clamp(-0.5, 0.5),
    "clamp max": lambda h: h.clamp_max(0.5),
    "clamp min": lambda h: h.clamp(min=-0.5),
    "cos": torch.cos,
    "div": lambda h: h / 3,
    "div by none": lambda h: torch.div(h, 3, rounding_mode=None),
    "divided": lambda h: 3 / h,
    "elu": F.elu,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "gelu": F.gelu,
    "gelu tanh": lambda h: F.gelu(h, approximate="tanh"),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": lambda h: F.hardtanh(h, -0.3, 0.4),
    "isinf": lambda h: torch.isinf(h / 0.0).to(h.dtype) + h,
    "isnan": lambda h: torch.isnan((h - h) / (h - h)).to(h.dtype) + h,
    "leaky relu": F.leaky_relu,
    "lerp": lambda h: torch.lerp(h, h * h, 0.25),
    "log": lambda h: torch.log(h.abs()),
    "log of a negative": lambda h: torch.log(h - 100),
    "log1p": lambda h: torch.log1p(h.abs()),
    "log2": lambda h: torch.log2(h.abs()),
    "log sigmoid": F.logsigmoid,
    "logical": lambda h: torch.where(~((h > 0) & (h < 1) | (h > 2)), h, -h),
    "logical functions": lambda h: (
        torch.logical_not(torch.logical_and(h > 0, h < 1).logical_or(h > 2)).to(h.dtype) + h
    ),
    "masked fill": lambda h: h.masked_fill(h > 0, -1.0),
    "masked fill tensor": lambda h: h.masked_fill(h > 0, torch.tensor(-1.0)),
    "mish": F.mish,
    "nan to num": lambda h: torch.nan_to_num(h / 0.0, posinf=3.0, neginf=-3.0),
    "neg": torch.neg,
    "pow 0": lambda h: h**0,
    "pow 1": lambda h: h**1,
    "pow 2": lambda h: h**2,
    "pow 3": lambda h: h**3,
    "pow 4": lambda h: h**4,
    "pow 1.5": lambda h: h.abs() ** 1.5,
    "pow half": lambda h: h.abs() ** 0.5,
    "pow minus half": lambda h: h.abs() ** -0.5,
    "pow minus 1": lambda h: h**-1,
    "power": lambda h: 1.7**h,
    "prelu": lambda h: F.prelu(h, torch.full((1,), 0.2, dtype=h.dtype)),
    "reciprocal": torch.reciprocal,
    "relu": F.relu,
    "relu6": F.relu6,
    "rsqrt": lambda h: torch.rsqrt(h.abs()),
    "rsub": lambda h: 2 - h,
    "rsub tensor": lambda h: torch.rsub(h, h * h, alpha=2),
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "sign": lambda h: torch.sign(h) + torch.sign(h - h),
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "softplus beta": lambda h: F.softplus(h, beta=2.0),
    "softshrink": F.softshrink,
    "sqrt": lambda h: torch.sqrt(h.abs()),
    "square": torch.square,
    "tanh": torch.tanh,
    "threshold": lambda h: F.threshold(h, 0.1, 20.0),
    "to bool": lambda h: (h - h).bool().to(h.dtype) + h.bool().to(h.dtype),
    "where scalar": lambda h: torch.where(h > 0, h, 0.5),
    "constants": lambda h: (
        h * torch.full_like(h, 2.0)
        + torch.ones_like(h)
        + torch.zeros_like(h)
        + torch.full((N,), 3.0, dtype=h.dtype)
        + torch.ones(N, dtype=h.dtype)
        + torch.zeros(1, dtype=h.dtype)
        + torch.tensor(4.0, dtype=h.dtype)
        + torch.scalar_tensor(5.0, dtype=h.dtype)
    ),
}

_COMPARED = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}
COMPARISONS = {
    f"{name}{' scalar' if scalar else ''}": (
        lambda h, r, op=op, scalar=scalar: torch.where(op(h, 0.25 if scalar else r), h, -h)
    )
    for name, op in _COMPARED.items()
    for scalar in (False, True)
}

BINARY = {
    **COMPARISONS,
    "add": lambda h, r: h + r,
    "addcmul": lambda h, r: torch.addcmul(h, h, r, value=0.5),
    "addcdiv": lambda h, r: torch.addcdiv(h, h, r, value=0.5),
    "clamp": lambda h, r: torch.clamp(h, -r.abs(), r.abs()),
    "clamp one side": lambda h, r: torch.clamp_max(torch.clamp_min(h, -r.abs()), r.abs()),
    "copy": lambda h, r: torch.ops.aten.copy(h, r + h),
    "div": lambda h, r: h / r,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "mul": lambda h, r: h * r,
    "pow": lambda h, r: h.abs() ** r,
    "sub": lambda h, r: h - r,
    "where": lambda h, r: torch.where(r > 0, h, r),
}

REDUCING = {
    "all": lambda h: (h > -1).all(-1).to(h.dtype),
    "amax": lambda h: h.amax(-1, keepdim=True) * h,
    "amin": lambda h: h.amin(-1),
    "any": lambda h: (h > 1).any(-1, keepdim=True).to(h.dtype) + h,
    "log softmax": lambda h: F.log_softmax(h, -1),
    "max": lambda h: h.max(-1).values,
    "mean": lambda h: h.mean(-1, keepdim=True) + h,
    "min": lambda h: h.min(dim=-1, keepdim=True)[0] - h,
    "norm 1": lambda h: F.normalize(h, p=1.0, dim=-1),
    "norm 2": lambda h: F.normalize(h, dim=-1),
    "norm inf": lambda h: torch.linalg.vector_norm(h, math.inf, dim=-1),
    "softmax": lambda h: F.softmax(h, -1),
    "standard deviation": lambda h: h.std(-1),
    "sum": lambda h: h.sum(dim=(-1,)),
    "variance": lambda h: h.var(-1),
    "variance and mean": lambda h: torch.var_mean(h, dim=-1, correction=0)[1],
    "variance of a population": lambda h: h.var(-1, keepdim=True, correction=0) + h,
    "layer norm": lambda h: F.layer_norm(h, (N,)),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(lambda x, w: UNARY[name](F.linear(x, w)), x(), weight(), tolerance=1e-5)


@pytest.mark.parametrize("space", ["tile", "row"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, space):
    other = residual() if space == "tile" else row()
    if name == "copy" and space == "row":
        pytest.skip("writes a whole tile")
    check(lambda x, w, r: BINARY[name](F.linear(x, w), r), x(), weight(), other)


@pytest.mark.parametrize("name", REDUCING)
def test_reduction(name):
    check(lambda x, w: REDUCING[name](F.linear(x, w)), x(), weight())


def test_every_row_of_the_table_has_a_case():
    """An operator that no case above leads to is untested."""
    seen = set()
    for table, extra in ((UNARY, ()), (BINARY, (residual(),)), (REDUCING, ())):
        for fn in table.values():
            captured = capture(lambda x, w, *r, fn=fn: fn(F.linear(x, w), *r), (x(), weight(), *extra))
            seen |= {node.target for node in captured.graph.nodes}
    # Spellings that torch's Python functions no longer lead to on this version.
    rare = {
        aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.div.Scalar_mode,
        aten.square.default, aten.logical_and.default, aten.new_ones.default,
    }  # fmt: skip
    # Over all dimensions: refused, see test_refusals.
    rare |= {getattr(aten, name).default for name in ("all", "any", "max", "mean", "min", "sum")}
    missing = (set(ELEMENTWISE) | set(REDUCTIONS) | set(CONSTANTS)) - seen - rare
    assert not missing
