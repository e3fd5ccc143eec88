"""Correct before timed: a provider's output against float64, on a sample of rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.programs import Inputs, gemm, program
from bench.workloads import Workload

# Rounding once, at the store, moves a bf16 value by at most 2^-9 of it; the rest is float32's share.
ROUNDED_ONCE = 2.0e-3


def sample_rows(m: int, device: str, limit: int = 512) -> Tensor:
    """Up to about `limit` row numbers: the first and last tile's borders, and a spread of the rest."""
    borders = [r for r in (0, 1, 63, 64, 127, 128, 129, m - 129, m - 128, m - 2, m - 1) if 0 <= r < m]
    spread = range(0, m, max(1, m // limit))
    return torch.tensor(sorted({*borders, *spread}), device=device)


class Reference:
    """The float64 results of a workload on a sample of its rows.

    ``eager_error`` is the error of the half-precision program as torch runs it: the yardstick.
    """

    def __init__(self, w: Workload, inputs: Inputs) -> None:
        self.rows = sample_rows(w.m, str(inputs.x.device))
        sample = inputs.rows(self.rows).to(torch.float64)
        self._program = program(w)(*sample.tensors())
        self._gemm = gemm(sample)
        self.eager_error = relative_error(program(w)(*inputs.tensors())[self.rows], self._program)

    def error(self, output: Tensor, *, of_gemm: bool = False) -> float:
        """||output - reference|| / ||reference||; infinite if any element of the whole output is not finite.

        A wrong output outside the sample still shows if it was left unwritten: outputs start as NaN.
        """
        if not bool(torch.isfinite(output).all()):
            return float("inf")
        return relative_error(output[self.rows], self._gemm if of_gemm else self._program)

    def bound(self, *, rounds_once: bool) -> float:
        """The error up to which an output counts as right: that of one rounding, or twice eager's."""
        return ROUNDED_ONCE if rounds_once else 2 * self.eager_error


def relative_error(output: Tensor, reference: Tensor) -> float:
    """Relative Frobenius error."""
    return float((output.double() - reference).norm() / reference.norm())


def poisoned(call: Callable[[], Tensor]) -> Tensor:
    """The output of a call whose allocations start as NaN.

    The caching allocator hands the block of a freed tensor to the next request of its size.
    """
    first = call()
    first.fill_(float("nan"))  # also reaches a provider that keeps one output buffer
    spare = torch.full_like(first, float("nan"))
    del first, spare
    return call()
