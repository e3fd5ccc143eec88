"""The reductions of comfuse.generator.ops: one torch function for each monoid, over any axis."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from comfuse.generator.ops import Axis

Tensor = torch.Tensor
Fields = dict[str, Tensor]


def _extreme(function: Callable[..., Tensor], neutral: float) -> Callable[[Tensor], Tensor]:
    def checked(x: Tensor) -> Tensor:
        if x.shape[-1] == 0:  # torch refuses
            return x.new_full(x.shape[:-1], neutral)
        return function(x, dim=-1)

    return checked


_amax = _extreme(torch.amax, -math.inf)
_amin = _extreme(torch.amin, math.inf)


def _welford(x: Tensor) -> Fields:
    mean = x.mean(dim=-1, keepdim=True)
    return {"mean": mean.squeeze(-1), "var": (x - mean).square().mean(dim=-1)}


def _softmax(x: Tensor) -> Fields:
    peak = _amax(x)
    sumexp = torch.exp(x - peak.unsqueeze(-1)).sum(dim=-1)
    return {"max": peak, "sumexp": sumexp, "lse": torch.logsumexp(x, dim=-1)}


def _first(extreme: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Fields]:
    """The index of the first of equals; torch's own promises none of them."""

    def index(x: Tensor) -> Fields:
        indices = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
        hit = (x == extreme(x).unsqueeze(-1)) | x.isnan()
        return {"value": torch.where(hit, indices, math.inf).amin(dim=-1)}

    return index


#: From values of shape (..., L) to the fields of the monoid, each of shape (...).
MONOIDS: dict[str, Callable[[Tensor], Fields]] = {
    "sum": lambda x: {"value": x.sum(dim=-1)},
    "prod": lambda x: {"value": x.prod(dim=-1)},
    "max": lambda x: {"value": _amax(x)},
    "min": lambda x: {"value": _amin(x)},
    "sumsq": lambda x: {"value": (x * x).sum(dim=-1)},
    "welford": _welford,
    "softmax": _softmax,
    "argmax": _first(_amax),
    "argmin": _first(_amin),
}


def reduce(x: Tensor, axis: Axis, monoid: str, group: int | None) -> Fields:
    """The fields of a reduction of ``x`` of shape (batch, M, N).

    Returns:
        Tensors of shape (batch, M, 1) for a row, (batch, M, N / group) for a group, (batch, 1, N) for a
        column and (batch, 1, 1) for everything.
    """
    batch, m, n = x.shape
    if axis == "row":
        return {name: field.unsqueeze(-1) for name, field in MONOIDS[monoid](x).items()}
    if axis == "group":
        assert group is not None
        return MONOIDS[monoid](x.reshape(batch, m, n // group, group))
    if axis == "col":
        return {name: field.unsqueeze(-2) for name, field in MONOIDS[monoid](x.transpose(-1, -2)).items()}
    everything = x.reshape(batch, 1, 1, m * n)
    return MONOIDS[monoid](everything)
