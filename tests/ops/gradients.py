"""Gradients of an op, beside those of the same program in torch's own ops and in float64."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from tests.ops.cases import ROUNDING

Results = tuple[Tensor, ...]
Arguments = dict[str, Any]


def leaves(
    arguments: Arguments, dtype: torch.dtype | None = None, wanted: Collection[str] | None = None
) -> Arguments:
    """Fresh tensors that require a gradient, by default all that can have one; perhaps in another dtype."""

    def leaf(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        tensor = value.detach().clone() if dtype is None else value.detach().to(dtype, copy=True)
        return tensor.requires_grad_(wanted is None or name in wanted)

    return {name: leaf(name, value) for name, value in arguments.items()}


def gradients(results: Results, given: Arguments, seed: int = 1) -> dict[str, Tensor]:
    """Of the leaves, where each result's own gradient is random; in float64."""
    generator = torch.Generator(results[0].device).manual_seed(seed)
    towards = [
        torch.randn(y.shape, generator=generator, device=y.device).to(torch.bfloat16).to(y.dtype)
        for y in results
    ]
    asked = {name: t for name, t in given.items() if isinstance(t, Tensor) and t.requires_grad}
    found = torch.autograd.grad(results, list(asked.values()), towards)
    return {name: g.double() for name, g in zip(asked, found, strict=True)}


def check(
    op: Callable[..., Results],
    reference: Callable[..., Results],
    arguments: Arguments,
    wanted: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """The op's gradients: the error of each is at most twice that of ``reference`` in the arguments' dtypes.

    Both against ``reference`` in float64.  One rounding of the gradient is always allowed.
    """
    ours = leaves(arguments, wanted=wanted)
    got = gradients(op(**ours), ours)
    theirs, doubles = leaves(arguments, wanted=wanted), leaves(arguments, torch.float64, wanted)
    eager = gradients(reference(**theirs), theirs)
    exact = gradients(reference(**doubles), doubles)
    assert got.keys() == exact.keys()
    for name, right in exact.items():
        assert got[name].shape == right.shape, name
        error, allowed = (got[name] - right).norm(), 2 * (eager[name] - right).norm()
        floor = ROUNDING[arguments[name].dtype] * right.norm()
        assert error <= max(allowed, floor), f"{name}: {error:.3e}, {allowed:.3e} allowed"
    return got
