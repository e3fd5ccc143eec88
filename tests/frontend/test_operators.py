"""Every operator of the table, alone, against torch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from comfuse.frontend.capture import capture
from comfuse.frontend.handlers import ELEMENTWISE, FILLS, POSITIONS, REDUCTIONS
from tests.frontend.support import N, check, residual, row, weight, x

aten = torch.ops.aten

UNARY = {
    "abs": torch.abs,
    "acos": lambda h: torch.acos(h / 8),
    "acosh": lambda h: torch.acosh(1 + h.abs()),
    "alpha add": lambda h: torch.add(h, h, alpha=3),
    "alpha add scalar": lambda h: torch.add(h, 2.0, alpha=3),
    "alpha sub": lambda h: torch.sub(h, h * h, alpha=3),
    "alpha sub scalar": lambda h: torch.sub(h, 2.0, alpha=3),
    "celu": lambda h: F.celu(h, 0.5),
    "asin": lambda h: torch.asin(h),  # NaN beyond 1
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "ceil": lambda h: torch.ceil(3 * h),
    "clamp": lambda h: h.clamp(-0.5, 0.5),
    "clamp max": lambda h: h.clamp_max(0.5),
    "clamp min": lambda h: h.clamp(min=-0.5),
    "cos": torch.cos,
    "cosh": torch.cosh,
    "deg2rad": torch.deg2rad,
    "div": lambda h: h / 3,
    "div by none": lambda h: torch.div(h, 3, rounding_mode=None),
    "divided": lambda h: 3 / h,
    "div floor": lambda h: torch.div(h, 0.25, rounding_mode="floor"),
    "div trunc": lambda h: torch.div(h, 0.25, rounding_mode="trunc"),
    "elu": F.elu,
    "elu alpha": lambda h: F.elu(h, 0.7),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fill": lambda h: h + torch.fill(h, 2.0),
    "floor": lambda h: torch.floor(3 * h),
    "floor divide": lambda h: h // 0.25,
    "fmax and fmin": lambda h: torch.fmax(h, torch.log(h)) + torch.fmin(torch.sqrt(h), -h),  # of one NaN
    "fmod": lambda h: torch.fmod(h, 0.25),
    "frac": torch.frac,
    "gelu": F.gelu,
    "gelu tanh": lambda h: F.gelu(h, approximate="tanh"),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": lambda h: F.hardtanh(h, -0.3, 0.4),
    "hardshrink": F.hardshrink,
    "hypot": lambda h: torch.hypot(h, 3 - h),
    "isfinite": lambda h: torch.isfinite(h / torch.floor(h.abs())).to(h.dtype) + h,
    "isinf": lambda h: torch.isinf(h / 0.0).to(h.dtype) + h,
    "isnan": lambda h: torch.isnan((h - h) / (h - h)).to(h.dtype) + h,
    "isinf signed": lambda h: torch.isposinf(h / 0.0).to(h.dtype) - torch.isneginf(h / 0.0).to(h.dtype),
    "leaky relu": F.leaky_relu,
    "lerp": lambda h: torch.lerp(h, h * h, 0.25),
    "log": lambda h: torch.log(h.abs()),
    "log of a negative": lambda h: torch.log(h - 100),
    "log10": lambda h: torch.log10(h.abs()),
    "log1p": lambda h: torch.log1p(h.abs()),
    "log2": lambda h: torch.log2(h.abs()),
    "log sigmoid": F.logsigmoid,
    "logit": lambda h: torch.logit(torch.sigmoid(h), 1e-3),
    "logical": lambda h: torch.where(~((h > 0) & (h < 1) | (h > 2)), h, -h),
    "logical functions": lambda h: (
        torch.logical_not(torch.logical_and(h > 0, h < 1).logical_or(h > 2)).to(h.dtype) + h
    ),
    "logical xor": lambda h: torch.where((h > 0) ^ (h > 1), h, -h) * torch.logical_xor(h > -1, h < 1),
    "logical scalars": lambda h: torch.where(((h > 0) | False) & True, h, -h) * ((h > 1) ^ True),
    "bool arithmetic": lambda h: ((h > 0) + (h > -1)) * ((h < 2) * (h > -2)) * h,
    "masked fill": lambda h: h.masked_fill(h > 0, -1.0),
    "masked fill tensor": lambda h: h.masked_fill(h > 0, torch.tensor(-1.0)),
    "mish": F.mish,
    "nan to num": lambda h: torch.nan_to_num(h / 0.0, posinf=3.0, neginf=-3.0),
    "neg": torch.neg,
    "normalised by a power": lambda h: h / h.abs().pow(0.3),
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
    "quick gelu": lambda h: h * torch.sigmoid(1.702 * h),
    "rad2deg": torch.rad2deg,
    "reciprocal": torch.reciprocal,
    "remainder": lambda h: h % 0.25,
    "remainder of a number": lambda h: 2.0 % (h.abs() + 1),
    "round": lambda h: torch.round(3 * h),
    "round decimals": lambda h: torch.round(h, decimals=1),
    "relu": F.relu,
    "relu6": F.relu6,
    "rsqrt": lambda h: torch.rsqrt(h.abs()),
    "rsub": lambda h: 2 - h,
    "rsub tensor": lambda h: torch.rsub(h, h * h, alpha=2),
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "sign": lambda h: torch.sign(h) + torch.sign(h - h),
    "silu": F.silu,
    "sinc": torch.sinc,
    "sinh": torch.sinh,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "tan": torch.tan,
    "trunc": lambda h: torch.trunc(3 * h),
    "to int": lambda h: (5 * h).clamp(-99, 99).to(torch.int32) * 2 + (3 * h).long().to(h.dtype),
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
    "written over": lambda h: (
        torch.empty_like(h).copy_(h)
        + h.new_empty(h.shape).copy_(h)
        + torch.empty(h.shape, dtype=h.dtype).copy_(h)
    ),
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

POSITIONED = {
    "arange along columns": lambda h: h * torch.arange(N),
    "arange with a step": lambda h: h * torch.arange(3, 3 + 2 * N, 2),
    "arange from a start": lambda h: h * torch.arange(3, 3 + N),
    "arange in groups": lambda h: h.view(6, 4, 4) * torch.arange(4),
    "arange over groups": lambda h: h.view(6, 4, 4) * torch.arange(4)[:, None],
    "arange along rows": lambda h: h * torch.arange(h.shape[0])[:, None],
    "arange over both": lambda h: h + torch.arange(6 * N).view(6, N),
    "arange of a part": lambda h: h * torch.arange(2 * N)[N:],
    "eye": lambda h: h - torch.eye(6, N),
    "a part of an eye": lambda h: h - torch.eye(N)[:6],
    "iota": lambda h: (
        h * torch.ops.prims.iota(N, start=0, step=1, dtype=torch.int64, device=h.device, requires_grad=False)
    ),
    "one hot": lambda h: h * F.one_hot(torch.arange(6) * 2, N),
    "tril": lambda h: h.tril(1),
    "triu": lambda h: h.triu(-1),
    "triangle of ones": lambda h: h.masked_fill(torch.ones(6, N, dtype=torch.bool).triu(1), -5.0),
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
    "fmod": torch.fmod,
    "heaviside": torch.heaviside,
    "huber loss": lambda h, r: F.huber_loss(h, r.expand_as(h), reduction="none"),
    "logaddexp": torch.logaddexp,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "mul": lambda h, r: h * r,
    "prelu": lambda h, r: F.prelu(h.flatten(0, 1), r.flatten()[:N]),
    "remainder": torch.remainder,
    "smooth l1 loss": lambda h, r: F.smooth_l1_loss(h, r.expand_as(h), reduction="none"),
    "xlogy": lambda h, r: torch.xlogy(h, r.abs()),
    "pow": lambda h, r: h.abs() ** r,
    "sub": lambda h, r: h - r,
    "where": lambda h, r: torch.where(r > 0, h, r),
}

BACKWARD = {
    "elu": lambda g, h: aten.elu_backward(g, 1.0, 1.0, 1.0, False, h),
    "gelu": aten.gelu_backward,
    "gelu tanh": lambda g, h: aten.gelu_backward(g, h, approximate="tanh"),
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardswish": aten.hardswish_backward,
    "hardtanh": lambda g, h: aten.hardtanh_backward(g, h, -0.5, 0.5),
    "leaky relu": lambda g, h: aten.leaky_relu_backward(g, h, 0.1, False),
    "log sigmoid": lambda g, h: aten.log_sigmoid_backward(g, h, torch.exp(-h.abs())),
    "log softmax": lambda g, h: aten._log_softmax_backward_data(g, h, -1, h.dtype),
    "mish": aten.mish_backward,
    "sigmoid": aten.sigmoid_backward,
    "silu": aten.silu_backward,
    "softmax": lambda g, h: aten._softmax_backward_data(g, h, -1, h.dtype),
    "softplus": lambda g, h: aten.softplus_backward(g, h, 1.0, 20.0),
    "softplus beta": lambda g, h: aten.softplus_backward(g, h, 2.0, 20.0),
    "tanh": aten.tanh_backward,
    "threshold": lambda g, h: aten.threshold_backward(g, h, 0.0),
}

REDUCING = {
    "all": lambda h, d: (h > -1).all(d).to(h.dtype),
    "amax": lambda h, d: h.amax(d, keepdim=True),
    "amin": lambda h, d: h.amin(d),
    "aminmax": lambda h, d: torch.aminmax(h, dim=d if isinstance(d, int) else None),
    "any": lambda h, d: (h > 1).any(d, keepdim=True).to(h.dtype),
    "count nonzero": lambda h, d: torch.count_nonzero(torch.relu(h), d),
    "mean": lambda h, d: h.mean(d, keepdim=True),
    "nanmean": lambda h, d: torch.log(h).nanmean(d),
    "nansum": lambda h, d: torch.log(h).nansum(d, keepdim=True),
    "norm 0": lambda h, d: torch.linalg.vector_norm(torch.relu(h), 0, dim=d),
    "norm 1": lambda h, d: torch.linalg.vector_norm(h, 1, dim=d),
    "norm 2": lambda h, d: torch.linalg.vector_norm(h, dim=d, keepdim=True),
    "norm inf": lambda h, d: torch.linalg.vector_norm(h, math.inf, dim=d),
    "norm minus inf": lambda h, d: torch.linalg.vector_norm(h, -math.inf, dim=d),
    "standard deviation": lambda h, d: h.std(d),
    "sum": lambda h, d: h.sum(d),
    "variance": lambda h, d: h.var(d),
    "variance and mean": lambda h, d: torch.var_mean(h, dim=d, correction=0),
    "variance of a population": lambda h, d: h.var(d, keepdim=True, correction=0),
}

IN_ROWS = {
    "argmax": lambda h: h.argmax(-1),
    "argmin": lambda h: h.argmin(-1, keepdim=True),
    "gather": lambda h: h.gather(-1, h.argmax(-1, keepdim=True)),
    "gather of a softmax": lambda h: F.log_softmax(h, -1).gather(-1, h.argmin(-1, keepdim=True)),
    "group norm": lambda h: F.group_norm(h.flatten(0, 1), 4),
    "layer norm": lambda h: F.layer_norm(h, (h.shape[-1],)),
    "log softmax": lambda h: F.log_softmax(h, -1),
    "logsumexp": lambda h: torch.logsumexp(h, -1),
    "max": lambda h: h.max(-1),
    "max alone": lambda h: h.max(-1).values,
    "max index alone": lambda h: h.max(-1).indices,
    "min": lambda h: h.min(dim=-1, keepdim=True),
    "nll loss": lambda h: F.nll_loss(h.flatten(0, 1), h.argmin(-1).flatten(), reduction="none"),
    "normalize": lambda h: F.normalize(h, dim=-1),
    "normalize 1": lambda h: F.normalize(h, p=1.0, dim=-1),
    "prod": lambda h: h.prod(-1),
    "safe softmax": lambda h: aten._safe_softmax(h.masked_fill(h.amax(-1, keepdim=True) > 1, -math.inf), -1),
    "softmax": lambda h: F.softmax(h, -1),
}

OVER_EVERYTHING = {
    "all": lambda h: (h > -9).all().to(h.dtype),
    "any": lambda h: (h > 1).any().to(h.dtype),
    "max": torch.max,
    "mean": torch.mean,
    "min": torch.min,
    "norm": torch.norm,
    "prod": torch.prod,
    "sum": torch.sum,
    "binary cross entropy": lambda h: F.binary_cross_entropy_with_logits(h, torch.ones_like(h)),
    "mean of the rows' maxima": lambda h: h.amax(-1).mean(),
    "sum of sums": lambda h: h.sum((0, 1)).sum(),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(lambda x, w: UNARY[name](F.linear(x, w)), x(), weight(), tolerance=1e-5)


@pytest.mark.parametrize("name", POSITIONED)
def test_made_of_positions(name):
    check(lambda x, w: POSITIONED[name](F.linear(x, w)), x(6), weight())


@pytest.mark.parametrize("space", ["tile", "row"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, space):
    other = residual() if space == "tile" else row()
    if name == "copy" and space == "row":
        pytest.skip("writes a whole tile")
    if name == "prelu" and space == "tile":
        pytest.skip("has one weight a column")
    check(lambda x, w, r: BINARY[name](F.linear(x, w), r), x(), weight(), other)


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name):
    """With the GEMM as the gradient, and as what the function was given."""
    check(lambda g, w, h: BACKWARD[name](F.linear(g, w), h), x(), weight(), residual().sigmoid())
    check(lambda g, w, h: BACKWARD[name](h, F.linear(g, w)), x(), weight(), residual(), tolerance=1e-5)


@pytest.mark.parametrize("over", ["row", "groups", "rows", "everything"])
@pytest.mark.parametrize("name", REDUCING)
def test_reduction(name, over):
    dims = {"row": -1, "groups": -1, "rows": (0, 1), "everything": (0, 1, 2)}[over]
    if name == "aminmax" and over == "rows":
        pytest.skip("takes one dimension")

    def reduces(x, w):
        h = F.linear(x, w)
        return REDUCING[name](h.unflatten(-1, (4, 4)) if over == "groups" else h, dims)

    check(reduces, x(), weight(), tolerance=1e-5)


@pytest.mark.parametrize("name", IN_ROWS)
def test_in_rows(name):
    check(lambda x, w: IN_ROWS[name](F.linear(x, w)), x(), weight())


@pytest.mark.parametrize("name", OVER_EVERYTHING)
def test_over_everything(name):
    check(lambda x, w: OVER_EVERYTHING[name](F.linear(x, w)), x(), weight())


def test_every_row_of_the_table_has_a_case():
    """An operator that no case above leads to is untested."""
    flat = lambda fn: lambda h: fn(h.flatten(0, 1))  # noqa: E731
    cases = [(fn, ()) for table in (UNARY, IN_ROWS, OVER_EVERYTHING) for fn in table.values()]
    cases += [(fn, (residual(),)) for table in (BINARY, BACKWARD) for fn in table.values()]
    cases += [(lambda h, fn=fn: fn(h, -1), ()) for fn in REDUCING.values()]
    cases += [(lambda h, fn=fn: fn(h, (0, 1)), ()) for name, fn in REDUCING.items()]
    cases += [(flat(fn), ()) for fn in POSITIONED.values()]
    seen = set()
    for fn, extra in cases:
        captured = capture(lambda x, w, *r, fn=fn: fn(F.linear(x, w), *r), (x(), weight(), *extra))
        seen |= {node.target for node in captured.graph.nodes}
    # Spellings that torch's Python functions no longer lead to on this version.
    rare = {
        aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.div.Scalar_mode,
        aten.square.default, aten.logical_and.default, aten.new_ones.default, aten.fmod.Scalar,
    }  # fmt: skip
    missing = set(map(str, (set(ELEMENTWISE) | set(REDUCTIONS) | set(FILLS) | set(POSITIONS)) - seen - rare))
    missing.discard("prims.fma.default")  # TorchInductor's own, known once comfuse.inductor is imported
    assert not missing, sorted(missing)
