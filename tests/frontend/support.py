"""Checks a traced function against torch, through the generator's own float64 interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from comfuse.frontend.region import TracedRegion, trace_region
from comfuse.generator.interpret import interpret
from comfuse.generator.spec import Space

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


def evaluate(region: TracedRegion, args: Sequence[Any]) -> Any:
    """What the spec means for these arguments, in float64."""
    call = region.bind(args)
    lead = call.a.shape[:-1]
    m = call.a.numel() // region.spec.k
    gemm = call.a.double().reshape(m, -1) @ call.b.double().t()
    tensors, scalars = iter(call.operands), iter(call.scalars)
    operands: list[Any] = []
    for operand in region.spec.operands:
        if operand.space is Space.SCALAR:
            operands.append(next(scalars))
        elif operand.space is Space.TILE:
            operands.append(next(tensors).double().reshape(m, -1).tolist())
        else:
            operands.append(next(tensors).double().reshape(-1).tolist())
    results = [torch.tensor(y, dtype=torch.float64) for y in interpret(region.spec, gemm.tolist(), operands)]
    return region.pack([y.reshape(*lead, *y.shape[1:]) for y in results], lead)


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 1e-6) -> TracedRegion:
    """Traces ``fn`` and compares what its spec means with what it computes on the same numbers in float64."""
    region = trace_region(fn, args)
    found = pytree.tree_leaves(evaluate(region, args))
    double = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    expected = pytree.tree_leaves(fn(*double))
    assert len(found) == len(expected)
    for y, z in zip(found, expected, strict=True):
        torch.testing.assert_close(y, z.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    return region


def ops(region: TracedRegion) -> list[str]:
    return [node.op for node in region.spec.nodes]
