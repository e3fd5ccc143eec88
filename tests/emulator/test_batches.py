"""Batches in two levels of strides on an emulated GPU: every kind of operand, and the weights."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from bench.launch import SCHEDULES, forced_plan, raw_launch
from comfuse import reference
from comfuse.generator import emit
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Major, Space
from tests.emulator.cases import emulated

BF16, FP32 = DType.BF16, DType.FP32
OUTER, INNER, M, N, K = 2, 3, 136, 72, 40
KINDS = {
    "row": (Space.ROW, False, (1, N)),
    "column": (Space.COLUMN, False, (M, 1)),
    "tile": (Space.TILE, False, (M, N)),
    "strided": (Space.TILE, True, (1, N)),
}


def program(b_major: Major) -> FusedSpec:
    b = SpecBuilder(N, K, BF16, batched=True, b_major=b_major)
    x = b.gemm()
    for name, (space, strided, _) in KINDS.items():
        x = b.op("add", x, b.load(name, space, BF16, strided=strided))
    b.output("y", x, FP32)
    b.output("peak", b.op("row_max", x), FP32)
    return b.spec()


def drawn(*size: int) -> torch.Tensor:
    """Integers, of which all sums are exact."""
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randint(-4, 5, size, generator=generator).bfloat16()


def of(lead: tuple[int, int], rows: int, columns: int) -> torch.Tensor:
    """With the heads between the rows."""
    x = drawn(lead[0], rows, lead[1], columns).transpose(1, 2)
    return x.expand(OUTER, INNER, rows, columns)


@pytest.mark.parametrize("b_major", Major)
@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s.endswith("128x64")])
def test_operands_and_weights(b_major: Major, schedule: str, tmp_path: Path, include: Path) -> None:
    spec = program(b_major)
    kernel = emulated(emit.emit(forced_plan(spec, schedule)), tmp_path, include)
    batch = OUTER * INNER
    a = drawn(batch, M, K)
    for seed, lead in enumerate([(OUTER, 1), (1, INNER), (OUTER, INNER), (1, 1)]):
        b = of(lead, N, K) if b_major is Major.K else of(lead, K, N).mT
        operands = [of(lead, *matrix) for *_, matrix in KINDS.values()]
        operands[-1] = operands[-1].expand(OUTER, INNER, M, N)
        out = [torch.full((batch, M, N), torch.nan), torch.full((batch, M), torch.nan)]
        kernel.configure(seed)
        launch, workspace, arguments = raw_launch(kernel.kernel, spec, a, [b], operands, out)
        assert launch(ctypes.byref(arguments), workspace.data_ptr(), None) == 0, kernel.error
        for got, wanted in zip(out, reference.evaluate(spec, a, b, operands), strict=True):
            assert torch.equal(got, wanted), lead
