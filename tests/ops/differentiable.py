"""The named ops that have gradients, with their arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import ops
from tests.ops.cases import BF16, CASES, FP32, Case, N


def _cross_entropy(reduction: str) -> Case:
    def expected(x: Tensor, weight: Tensor, target: Tensor, bias: Any = 0, **options: Any) -> Tensor:
        z = x @ weight.t() + bias
        loss = F.cross_entropy(z.reshape(-1, N), target.reshape(-1), **options)
        return loss.view(target.shape) if reduction == "none" else loss

    options = {"ignore_index": 5, "reduction": reduction}
    op = ops.fused_gemm_cross_entropy
    return Case(f"cross_entropy {reduction}", op, expected, ("bias",), options=options, dtypes=(FP32,))


CROSS_ENTROPIES = [_cross_entropy(reduction) for reduction in ("none", "sum", "mean")]
DIFFERENTIABLE = [case for case in CASES if case.op is not ops.fused_gemm_quantize] + CROSS_ENTROPIES
every_case = pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda case: case.name)
CONSTANT = ("pre_activation", "target")  # have no gradient


def arguments_of(
    case: Case, lead: tuple[int, ...] = (2, 6), dtype: torch.dtype = BF16, other: torch.dtype | None = None
) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(case.arguments(lead, dtype, other or dtype))
    if case in CROSS_ENTROPIES:
        arguments["target"] = torch.arange(torch.Size(lead).numel()).view(lead) % N
    return arguments


def differentiable(case: Case, arguments: dict[str, Any]) -> list[str]:
    return [name for name in arguments if name not in CONSTANT]
