"""`comfuse.fuse` on what PyTorch programs put around a GEMM beyond a plain row program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import comfuse
from comfuse import fallbacks
from comfuse.frontend import trace_region
from comfuse.generator.spec import FusedSpec
from tests.gpu.compare import relative_error, tolerance
from tests.gpu.test_ops import no_fallback  # noqa: F401

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "no_fallback")]

BF16, FP32, BOOL = torch.bfloat16, torch.float32, torch.bool
K = 72


def batch_norm(x: Tensor, w: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """In training: one kernel where that is predicted to be the fastest, which runs all tiles at once; of two
    the second reads what the first stores.
    """
    return F.batch_norm(F.linear(x, w), None, None, gamma, beta, training=True)


def per_head_norm(x: Tensor, w: Tensor, gamma: Tensor) -> Tensor:
    z = F.linear(x, w).unflatten(-1, (-1, 64))
    y = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6) * gamma
    return y.flatten(-2)


def stacked_swiglu(x: Tensor, w: Tensor) -> Tensor:
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.silu(gate) * up


def dropout(x: Tensor, w: Tensor, keep: Tensor, residual: Tensor) -> Tensor:
    z = F.linear(x, w)
    return torch.where(keep, z / 0.9, torch.zeros_like(z)) + residual


def split_heads(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    z = F.linear(x, w, bias)
    return z.view(*x.shape[:2], -1, 64).transpose(1, 2)


def positions(x: Tensor, w: Tensor, table: Tensor) -> Tensor:
    return torch.softmax(F.linear(x, w) + table, -1)


def gelu_backward(dy: Tensor, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    dh = torch.ops.aten.gelu_backward(dy @ w, h)
    return dh, dh.sum(0)


def attention_scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(1, 2) * 0.125 + mask, -1)


def total(x: Tensor, w: Tensor) -> Tensor:
    return F.relu(F.linear(x, w)).float().sum()


def weight_gradient(dy: Tensor, x: Tensor, decay: Tensor) -> Tensor:
    """(N', K') of dy (rows, N') and x (rows, K'): both factors are contiguous along the result."""
    return dy.t() @ x + decay


@dataclass(frozen=True)
class GraphCase:
    """``shapes`` of the function's arguments, with their dtypes; "M" stands for the rows.

    ``copied``: the argument that each call writes out as the kernel reads it, which is counted.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[tuple[Any, ...], torch.dtype], ...]
    copied: str | None = None

    def __str__(self) -> str:
        return self.function.__name__

    def arguments(self, m: int, device: str = "cuda") -> list[Tensor]:
        torch.manual_seed(m)
        made = []
        for position, (shape, dtype) in enumerate(self.shapes):
            size = [m if s == "M" else s for s in shape]
            if dtype is BOOL:
                made.append(torch.rand(size, device=device) < 0.9)
            else:
                drawn = torch.randn(size, device=device)
                made.append((drawn / K**0.5 if position == 1 else drawn).to(dtype))
        return made


CASES = (
    GraphCase(batch_norm, ((("M", K), BF16), ((200, K), BF16), ((200,), BF16), ((200,), BF16))),
    GraphCase(per_head_norm, ((("M", K), BF16), ((384, K), BF16), ((64,), BF16)), copied="gamma"),
    GraphCase(stacked_swiglu, ((("M", K), BF16), ((2 * 520, K), BF16))),
    GraphCase(dropout, ((("M", K), BF16), ((200, K), BF16), (("M", 200), BOOL), (("M", 200), FP32))),
    GraphCase(split_heads, (((3, "M", K), BF16), ((384, K), BF16), ((384,), BF16))),
    GraphCase(positions, (((3, "M", K), BF16), ((200, K), BF16), (("M", 200), BF16))),
    GraphCase(gelu_backward, ((("M", K), BF16), ((K, 200), BF16), (("M", 200), BF16))),
    GraphCase(attention_scores, (((24, "M", K), BF16), ((24, 100, K), BF16), (("M", 100), FP32))),
    GraphCase(total, ((("M", K), BF16), ((520, K), BF16))),
    GraphCase(weight_gradient, ((("M", 136), BF16), (("M", 200), BF16), ((136, 200), FP32))),
)


def specs_ahead() -> list[FusedSpec]:
    """Of any number of rows, but for the products over the rows, whose number is K."""
    regions = [(c, m) for c in CASES for m in ((128, 256) if c.function is weight_gradient else (128,))]
    traced = [trace_region(c.function, c.arguments(m, "meta")) for c, m in regions]
    return [spec for region in traced for spec in (region.spec, *region.kernels)]


def _flat(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: GraphCase) -> None:
    fused = comfuse.fuse(case.function)
    for m in (128, 256):
        arguments = case.arguments(m)
        outputs = _flat(fused(*arguments))
        eager = _flat(case.function(*arguments))
        doubles = [x.double() if x.is_floating_point() else x for x in arguments]
        references = [x.double() for x in _flat(case.function(*doubles))]
        for output, e, reference in zip(outputs, eager, references, strict=True):
            assert output.shape == e.shape
            assert output.dtype == e.dtype
            error, allowed = (
                relative_error(output, reference),
                tolerance(output.dtype, output.numel()),
            )
            assert error <= allowed, f"M = {m}: error {error:.2e}, {allowed:.2e} allowed"
    if case.copied is not None:
        ((reason, times),) = fallbacks.counts().items()
        assert (reason[1].split()[0], times) == (case.copied, 2)
        fallbacks.reset()
    assert len(fused.regions) == (2 if case.function is weight_gradient else 1)


def test_batch_norm_of_any_number_of_rows() -> None:
    """One kernel for few rows, two for more than run at once, in between what is predicted to be faster; and
    never the reference.
    """
    fused = comfuse.fuse(batch_norm)
    case = CASES[0]
    counts = []
    for m in (2, 128, 2048, 8192, 16384, 20000, 128):
        arguments = case.arguments(m)
        y = fused(*arguments)
        reference = batch_norm(*(x.double() for x in arguments))
        error, allowed = relative_error(y, reference), tolerance(y.dtype, y.numel())
        assert error <= allowed, f"M = {m}: error {error:.2e}, {allowed:.2e} allowed"
        counts.append(len(fused.regions[-1].call(arguments).steps(y.device)))
    few, between, many, again = counts[:3], counts[3:5], counts[5], counts[6]
    assert (few, many, again) == ([1, 1, 1], 2, 1)
    assert between == sorted(between)
