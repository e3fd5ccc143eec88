"""`comfuse.fuse` on functions as a user writes them: one kernel each, right against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import comfuse
from comfuse.generator.spec import FusedSpec
from tests.gpu.compare import relative_error, same_bits, tolerance
from tests.gpu.test_ops import no_fallback  # noqa: F401

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "no_fallback")]


def softmax(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(F.linear(x, w, b), -1)


def layernorm(x: Tensor, w: Tensor, b: Tensor, residual: Tensor, g: Tensor, s: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, b) + residual, (w.shape[0],), g, s)


def row_max(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    z = F.linear(x, w, b)
    largest = z.float().abs().amax(-1)
    return (z / largest.unsqueeze(-1)).to(x.dtype), largest


def gemma(x: Tensor, w: Tensor, residual: Tensor, w0: Tensor, w1: Tensor) -> tuple[Tensor, Tensor]:
    def norm(z: Tensor, weight: Tensor) -> Tensor:
        return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight)

    h = residual + norm(F.linear(x, w), w0)
    return h, norm(h, w1)


def gated(x: Tensor, w: Tensor, gate: Tensor, column: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * gate * column


@dataclass(frozen=True)
class FuseCase:
    """``shapes``: of the arguments behind x and w, in terms of N; "tile", "row" or "column"."""

    function: Callable[..., Any]
    shapes: tuple[str, ...]
    n: int
    dtype: torch.dtype = torch.bfloat16
    operand_dtype: torch.dtype | None = None

    def __str__(self) -> str:
        mixed = f"-{self.operand_dtype}".replace("torch.", "") if self.operand_dtype else ""
        return f"{self.function.__name__}-n{self.n}-{str(self.dtype).removeprefix('torch.')}{mixed}"

    def arguments(self, m: int, k: int, device: str = "cuda") -> list[Tensor]:
        torch.manual_seed(m + k)
        sizes = {"tile": (m, self.n), "row": (self.n,), "column": (m, 1)}

        def random(*size: int) -> Tensor:
            return torch.randn(*size, device=device)

        w = random(self.n, k) if device == "meta" else random(self.n, k) / k**0.5
        gemm = [random(m, k).to(self.dtype), w.to(self.dtype)]
        return [*gemm, *(random(*sizes[s]).to(self.operand_dtype or self.dtype) for s in self.shapes)]


_LAYERNORM = ("row", "tile", "row", "row")
CASES = (
    FuseCase(softmax, ("row",), 1000),
    FuseCase(layernorm, _LAYERNORM, 768),
    FuseCase(layernorm, _LAYERNORM, 768, torch.float16),
    FuseCase(row_max, ("row",), 200),
    FuseCase(gemma, ("tile", "row", "row"), 1152),
    FuseCase(gated, ("tile", "column"), 512),
    FuseCase(gated, ("tile", "column"), 512, torch.bfloat16, torch.float32),
)


def specs_ahead() -> list[FusedSpec]:
    return [comfuse.trace(c.function, *c.arguments(256, 72, "meta")) for c in CASES]


def _flat(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: FuseCase) -> None:
    fused = comfuse.fuse(case.function)
    for m, k in ((1, 72), (257, 72), (1000, 1024)):
        arguments = case.arguments(m, k)
        outputs = _flat(fused(*arguments))
        eager = _flat(case.function(*arguments))
        references = _flat(case.function(*(a.double() for a in arguments)))
        for output, e, reference in zip(outputs, eager, references, strict=True):
            assert output.shape == e.shape
            assert output.dtype == e.dtype
            error, allowed = relative_error(output, reference), tolerance(output.dtype, output.numel())
            assert error <= allowed, f"M = {m}, K = {k}: error {error:.2e}, {allowed:.2e} allowed"


def test_leading_dimensions() -> None:
    case = CASES[1]
    fused = comfuse.fuse(case.function)
    x, w, b, residual, g, s = case.arguments(256, 72)
    flat = fused(x, w, b, residual, g, s)
    shaped = fused(x.view(4, 64, 72), w, b, residual.view(4, 64, case.n), g, s)
    assert shaped.shape == (4, 64, case.n)
    assert same_bits(shaped.view_as(flat), flat)
