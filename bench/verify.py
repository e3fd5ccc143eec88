"""Correct before timed: a provider's outputs against float64, on a sample of rows or as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.programs import DTYPES, Inputs, gemm, outputs, program
from bench.workloads import Workload

# Relative Frobenius error of one rounding, at the store.  Half a unit in the last place of a bf16 value is at
# most 2^-9 of it, of an e4m3 value 2^-4; over many values the root of the mean square is below that.
# float32's share is what a long sum may lose.
ROUNDED_ONCE = {
    torch.bfloat16: 2.0e-3,
    torch.float16: 2.5e-4,
    torch.float32: 4.0e-5,
    torch.float8_e4m3fn: 3.7e-2,
}


def sample_rows(m: int, device: str, limit: int = 512) -> Tensor:
    """Up to about `limit` row numbers: the first and last tile's borders, and a spread of the rest."""
    borders = [r for r in (0, 1, 63, 64, 127, 128, 129, m - 129, m - 128, m - 2, m - 1) if 0 <= r < m]
    spread = range(0, m, max(1, m // limit))
    return torch.tensor(sorted({*borders, *spread}), device=device)


class Reference:
    """The float64 results of a workload: on a sample of its rows, or on all where an output needs them.

    ``eager_errors``: of the half-precision program as torch runs it, one an output: the yardstick.
    """

    def __init__(self, w: Workload, inputs: Inputs) -> None:
        device = str(inputs.x.device)
        self._m = w.m
        self.rows = torch.arange(w.m, device=device) if w.whole else sample_rows(w.m, device)
        sample = inputs.rows(self.rows).to(torch.float64)
        self._program = outputs(program(w)(*sample.tensors()))
        self._gemm = (gemm(sample),)
        eager = outputs(program(w)(*inputs.tensors()))
        self._rounding = [ROUNDED_ONCE[x.dtype] * w.roundings**0.5 for x in eager]
        self._rounding_of_gemm = ROUNDED_ONCE[DTYPES[w.dtype]]
        self.eager_errors = self._errors(eager, self._program)

    def errors(self, results: Tensor | tuple[Tensor, ...], *, of_gemm: bool = False) -> list[float]:
        """||output - reference|| / ||reference|| of each output; infinite if any element of the whole output
        is not finite.

        A wrong output outside the sample still shows if it was left unwritten: outputs start as NaN.
        """
        return self._errors(outputs(results), self._gemm if of_gemm else self._program)

    def bounds(self, *, rounds_once: bool, of_gemm: bool = False) -> list[float]:
        """The errors up to which outputs count as right: that of one rounding (of a chain, of one in each
        link), or of a program that rounds in between too, twice eager's if that is more.
        """
        if of_gemm:
            return [self._rounding_of_gemm]
        if rounds_once:
            return self._rounding
        return [max(once, 2 * eager) for once, eager in zip(self._rounding, self.eager_errors, strict=True)]

    def _errors(self, results: tuple[Tensor, ...], references: tuple[Tensor, ...]) -> list[float]:
        return [self._error(x, r) for x, r in zip(results, references, strict=True)]

    def _error(self, output: Tensor, reference: Tensor) -> float:
        if not bool(torch.isfinite(output.float()).all()):
            return float("inf")
        of_rows = output.dim() > 0 and output.shape[0] == self._m
        return relative_error(output[self.rows] if of_rows else output, reference)


def relative_error(output: Tensor, reference: Tensor) -> float:
    """Relative Frobenius error."""
    return float((output.double() - reference.view(output.shape)).norm() / reference.norm())


def poisoned(call: Callable[[], Any]) -> tuple[Tensor, ...]:
    """The outputs of a call whose allocations start as NaN.

    The caching allocator hands the block of a freed tensor to the next request of its size.
    """
    first = outputs(call())
    spare = [torch.empty_like(x) for x in first]
    for x in (*first, *spare):  # the first too: a provider may keep one output buffer
        # Flat first: a last dimension of one may have any stride.
        x.view(-1).view(torch.uint8).fill_(0xFF)
    del first, spare, x
    return outputs(call())
