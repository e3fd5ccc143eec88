"""One program with inputs, and what its results have to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comfuse.errors import WrongResultError
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.spec import FusedSpec, Major, Output, Pair, Space
from comfuse.library.signature import signature
from comfuse.ops.programs import Program
from comfuse.reference import TORCH_DTYPES, evaluate, store
from comfuse.reference.accuracy import relative_error, tolerance, weighty

#: Calls a kernel with these outputs.
Launch = Callable[[Sequence[Tensor]], object]

_PATTERNS = (0xFF, 0x5A)  # of bytes; 0xFF is NaN in every floating-point dtype
_ELEMENTS = 2**24  # of a tile in the reference at a time
_RATIO = 2.0  # to the error of the float32 reference
# Share of integers and bools that may differ: values next to a boundary fall on either side of it.
_FLIPPED = 2e-4
_SCALAR = 0.5


@dataclass(frozen=True)
class Checked:
    """Of the output that came nearest to what is allowed: its relative error, and what is allowed."""

    error: float
    allowed: float


@dataclass(frozen=True)
class Problem:
    """A program, its inputs, and the float64 results on all rows.

    Attributes:
        lead: A's sizes before its last: (M,), of a batched program (batch, M).
        a: (*lead, K), contiguous as the program has it; ``b`` a list of (N, K), or (batch, N, K).
        operands, scalars: as :func:`comfuse.ops.region` takes them.
        reference: one tensor an output, float64, not rounded.
        allowed: the error up to which each output counts as right: that of one rounding and twice that of the
            float32 reference before it is rounded.  Of floating-point outputs the relative Frobenius error,
            of others the share of elements that differ.
    """

    spec: FusedSpec
    lead: tuple[int, ...]
    a: Tensor
    b: list[Tensor]
    operands: list[Tensor]
    scalars: list[float]
    reference: list[Tensor]
    allowed: list[float]

    @staticmethod
    def of(spec: FusedSpec, lead: tuple[int, ...], device: torch.device | str) -> Problem:
        """A program with random inputs, the same each time."""
        draw = _Draw(spec, lead, torch.device(device))
        a, b, operands, scalars = draw.a(), draw.b(), draw.operands(), draw.scalars()
        double, single = (_results(spec, a, b, operands, scalars, d) for d in (torch.float64, torch.float32))
        exact = [_in_range(output, x) for output, x in zip(spec.outputs, double, strict=True)]
        allowed = [_allowed(output, x, y) for output, x, y in zip(spec.outputs, exact, single, strict=True)]
        return Problem(spec, lead, a, b, operands, scalars, exact, allowed)

    def outputs(self) -> list[Tensor]:
        """Memory for the results."""
        program = Program.of(self.spec)
        shapes = program.output_shapes(self.lead)
        return [
            self.a.new_empty(shape, dtype=dtype)
            for shape, dtype in zip(shapes, program.output_dtypes, strict=True)
        ]

    def check(self, launch: Launch) -> Checked:
        """Launches twice into outputs that are full of other bytes each time.

        Raises:
            WrongResultError: an element was not written, or was not the same both times, or an output is
                further from float64 than is allowed; names the output.
        """
        results = []
        for pattern in _PATTERNS:
            outputs = self.outputs()
            for output in outputs:
                _bytes(output).fill_(pattern)
            launch(outputs)
            results.append(outputs)
        for output, first, second in zip(self.spec.outputs, *results, strict=True):
            differ = int((_bytes(first) != _bytes(second)).sum())
            if differ:
                raise WrongResultError(
                    output.name, f"{differ} bytes are not written, or are others the second time"
                )
        found = [
            Checked(_error(output, y, exact), allowed)
            for output, y, exact, allowed in zip(
                self.spec.outputs, results[0], self.reference, self.allowed, strict=True
            )
        ]
        for output, one in zip(self.spec.outputs, found, strict=True):
            if not one.error <= one.allowed:
                raise WrongResultError(
                    output.name, f"error {one.error:.2e} against float64, {one.allowed:.2e} allowed"
                )
        return max(found, key=lambda one: one.error / one.allowed)


class _Draw:
    """Random inputs: a GEMM of unit variance, whatever the sizes."""

    def __init__(self, spec: FusedSpec, lead: tuple[int, ...], device: torch.device) -> None:
        self.spec, self.lead, self.device = spec, lead, device
        self.generator = torch.Generator(device).manual_seed(int(signature(spec)[:12], 16))

    def normal(self, *size: int) -> Tensor:
        return torch.randn(size, device=self.device, generator=self.generator)

    def a(self) -> Tensor:
        return self._a(self.spec.pairs[0])

    def b(self) -> list[Tensor]:
        """The factors behind the first A: every B, and the second one's own A before it."""
        factors = [self._b(self.spec.pair_of(product)) for product in range(self.spec.products)]
        if self.spec.second is not None:
            factors.insert(1, self._a(self.spec.second))
        return factors

    def _a(self, pair: Pair) -> Tensor:
        dtype = TORCH_DTYPES[self.spec.dtype]
        return _laid_out(self.normal(*self.lead, pair.k).to(dtype), pair.a_major)

    def _b(self, pair: Pair) -> Tensor:
        batch = self.lead[:1] if self.spec.batched else ()
        drawn = max(pair.k, 1) ** -0.5 * self.normal(*batch, self.spec.n, pair.k)
        return _laid_out(drawn.to(TORCH_DTYPES[self.spec.dtype]), pair.b_major)

    def operands(self) -> list[Tensor]:
        n = self.spec.n
        sizes = {Space.TILE: (*self.lead, n), Space.ROW: (n,), Space.COLUMN: self.lead}
        return [
            self._operand(o.space, sizes[o.space], TORCH_DTYPES[o.dtype])
            for o in self.spec.operands
            if o.space is not Space.SCALAR
        ]

    def scalars(self) -> list[float]:
        return [_SCALAR for o in self.spec.operands if o.space is Space.SCALAR]

    def _operand(self, space: Space, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if dtype is torch.bool:
            return torch.rand(size, device=self.device, generator=self.generator) < 0.5
        if not dtype.is_floating_point:
            # A number a row is a column's, such as a target; others are small.
            high = min(self.spec.n, torch.iinfo(dtype).max) if space is Space.COLUMN else 9
            return torch.randint(0, high, size, device=self.device, generator=self.generator).to(dtype)
        drawn = self.normal(*size)
        # Factors and divisors a row: away from zero.
        return (drawn.abs() + 0.5 if space is Space.COLUMN else drawn).to(dtype)


def _laid_out(x: Tensor, major: Major) -> Tensor:
    """The same values, contiguous along the last dimension or the one before it."""
    return x if major is Major.K else x.mT.contiguous().mT


def _results(
    spec: FusedSpec,
    a: Tensor,
    b: list[Tensor],
    operands: list[Tensor],
    scalars: list[float],
    dtype: torch.dtype,
) -> list[Tensor]:
    """The results as computed in a dtype, not rounded.

    In blocks of rows where no row needs another, so that the values between take little memory.
    """
    tensors = [o for o in spec.operands if o.space is not Space.SCALAR]
    m = a.shape[0]
    block = max(1, _ELEMENTS // spec.n) if _rows_are_apart(spec) else m
    parts: list[list[Tensor]] = []
    for low in range(0, m, block):
        rows = slice(low, low + block)
        some = [
            x if o.space is Space.ROW or spec.batched else x[rows]
            for o, x in zip(tensors, operands, strict=True)
        ]
        part = a if spec.batched else a[rows]
        factors = list(b)
        if spec.second is not None and not spec.batched:
            factors[1] = factors[1][rows]
        parts.append(evaluate(spec, part, factors, some, scalars, dtype=dtype, round_outputs=False))
    return _joined(spec, parts)


def _rows_are_apart(spec: FusedSpec) -> bool:
    """Whether the rows of the results depend on the same rows of the inputs alone, wherever they lie."""
    if spec.batched:
        return False
    over_rows = any(n.op in REDUCTIONS and REDUCTIONS[n.op].axis in ("col", "full") for n in spec.nodes)
    return not over_rows and not any(n.op in ("row_index", "row_count") for n in spec.nodes)


def _joined(spec: FusedSpec, parts: list[list[Tensor]]) -> list[Tensor]:
    if len(parts) == 1:
        return parts[0]
    spaces = Program.of(spec).output_spaces
    joined = []
    for output, space, pieces in zip(spec.outputs, spaces, zip(*parts, strict=True), strict=True):
        if space in (Space.ROW, Space.SCALAR):  # of no row in particular
            joined.append(pieces[0])
        else:
            joined.append(torch.cat(pieces, dim=0 if output.heads is None else -2))
    return joined


def _allowed(output: Output, exact: Tensor, single: Tensor) -> float:
    reference = _error(output, single, exact)
    least = max(_FLIPPED, 1 / max(1, exact.numel()))
    dtype = TORCH_DTYPES[output.dtype]
    if dtype.is_floating_point:
        least = tolerance(dtype, weighty(exact))
    return least + (_RATIO * reference if math.isfinite(reference) else 0.0)


def _error(output: Output, y: Tensor, exact: Tensor) -> float:
    """``y``: as it is stored, or not rounded yet."""
    if TORCH_DTYPES[output.dtype].is_floating_point:
        return relative_error(y, exact)
    stored = store(y, output.dtype) if y.dtype.is_floating_point else y
    return float((stored != store(exact, output.dtype)).double().mean()) if y.numel() else 0.0


def _in_range(output: Output, exact: Tensor) -> Tensor:
    """The results, those beyond the range of the output's dtype as it stores them."""
    dtype = TORCH_DTYPES[output.dtype]
    if not dtype.is_floating_point:
        return exact
    stored = store(exact, output.dtype).double()
    return torch.where(stored.abs() < torch.finfo(dtype).max, exact, stored)


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)
