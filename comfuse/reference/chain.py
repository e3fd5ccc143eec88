"""Runs a chain link by link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from comfuse.errors import ArgumentError
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import FusedSpec, Space
from comfuse.reference.evaluate import evaluate

Tensor = torch.Tensor


def evaluate_chain(
    chain: ChainSpec,
    a: Tensor,
    factors: Sequence[Tensor],
    operands: Sequence[Tensor] = (),
    scalars: Sequence[float] = (),
    *,
    dtype: torch.dtype = torch.float32,
    round_middle: bool = True,
    round_outputs: bool = True,
) -> list[Tensor]:
    """Runs ``chain`` on tensors of any device.

    Args:
        a: (..., K) of the first link.
        factors: every B (N, K), link by link: two of a link with two products.
        operands: the non-scalar operands, link by link, over the (M, N) of their link, each as
            :func:`evaluate` takes it.
        scalars: the scalar operands, link by link.
        dtype: what is computed in.
        round_middle: round what one link hands to the next to the dtype of its operand, as a kernel does.
        round_outputs: give outputs in the dtypes of the spec.

    Returns:
        The outputs of the last link, as :func:`evaluate` gives them.

    Raises:
        ArgumentError: too few or too many factors, operands or scalars, or one of the wrong size.
    """
    left: list[list[Any]] = [list(factors), list(operands), list(scalars)]
    results = [a]
    rounding = [round_middle] * (len(chain.links) - 1) + [round_outputs]
    for link, rounded in zip(chain.links, rounding, strict=True):
        counts = _counts(link)
        own = [values[:count] for values, count in zip(left, counts, strict=True)]
        left = [values[count:] for values, count in zip(left, counts, strict=True)]
        results = evaluate(link, results[0], *own, dtype=dtype, round_outputs=rounded)
    for name, values, more in zip(
        ("b", "operands", "scalars"), (factors, operands, scalars), left, strict=True
    ):
        if more:
            raise ArgumentError("reference", name, f"a list of {len(values)}", str(len(values) - len(more)))
    return results


def _counts(link: FusedSpec) -> tuple[int, int, int]:
    """The factors, tensor operands and scalars of a link."""
    scalars = sum(operand.space is Space.SCALAR for operand in link.operands)
    return link.products, len(link.operands) - scalars, scalars
