"""Checks a traced function against torch, through the reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from comfuse import reference
from comfuse.frontend import TracedRegion, trace_region
from comfuse.generator.spec import FusedSpec
from comfuse.ops import programs

N, K = 16, 8
LEAD = (2, 3)


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Numbers that bfloat16 holds exactly enough of: the same in every dtype."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(torch.bfloat16).to(dtype)


def x(*lead: int) -> torch.Tensor:
    return tensor(*(lead or LEAD), K, seed=1)


def weight() -> torch.Tensor:
    return tensor(N, K, seed=2)


def residual(*lead: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return tensor(*(lead or LEAD), N, dtype=dtype, seed=3)


def row(seed: int = 4, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return tensor(N, dtype=dtype, seed=seed)


def exact(
    text: str, a: torch.Tensor, b: torch.Tensor, operands: Sequence[torch.Tensor], scalars: Sequence[float]
) -> list[torch.Tensor]:
    """What a kernel computes, in float64 and not rounded."""
    program = programs.parse(text)
    factors, rest = program.split(b, operands)
    given = (a, factors, rest, scalars)
    exactly = {"dtype": torch.float64, "round_outputs": False}
    if isinstance(program.spec, FusedSpec):
        return reference.evaluate(program.spec, *given, **exactly)
    return reference.evaluate_chain(program.spec, *given, **exactly, round_middle=False)


def exact_into(
    text: str,
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    out: Sequence[torch.Tensor],
) -> None:
    for place, y in zip(out, exact(text, a, b, operands, scalars), strict=True):
        place.copy_(y)


def evaluate(region: TracedRegion, args: Sequence[Any]) -> Any:
    """What the region means for these arguments, in float64."""
    call = region.call(args)
    return call.run(call.tensors(args), exact, exact_into)


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 1e-6) -> TracedRegion:
    """Traces ``fn`` and compares what its spec means with what it computes on the same numbers in float64."""
    region = trace_region(fn, args)
    found = pytree.tree_leaves(evaluate(region, args))
    double = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    expected = pytree.tree_leaves(fn(*double))
    assert len(found) == len(expected)
    for y, z in zip(found, expected, strict=True):
        torch.testing.assert_close(y.double(), z.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    return region


def ops(region: TracedRegion) -> list[str]:
    return [node.op for node in region.spec.nodes]
