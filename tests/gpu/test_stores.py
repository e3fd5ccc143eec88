"""Stores: every dtype with its roundings and limits, every layout of a tile, nothing around it touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comfuse import ops
from comfuse.generator.spec import DType, Space
from tests.gpu.algebra import Algebra, Out, Program
from tests.gpu.compare import check_exact, same_bits
from tests.gpu.reductions import SCHEDULES, WIDE_SCHEDULES
from tests.gpu.support import Case, Tensors, make_tensors, run_op

pytestmark = pytest.mark.gpu

INF, NAN = float("inf"), float("nan")
FIRST = (DType.BF16, DType.FP16, DType.FP32, DType.E4M3, DType.E5M2, DType.INT8, DType.UINT8, DType.BOOL)
REST = (DType.INT32, DType.INT64)


def _value(a: Algebra, acc: Any, value: Any) -> Any:
    """The operand itself: A is all zeros."""
    return a.add(value, acc)


def storing(dtypes: tuple[DType, ...], *, strided: bool) -> Program:
    """One value as each of these."""
    name = f"store_{'strided' if strided else 'plain'}_{dtypes[0].value}_{len(dtypes)}"
    outputs = tuple(Out(d.value, d, strided) for d in dtypes)
    return Program(
        name,
        lambda a, acc, value: (_value(a, acc, value),) * len(dtypes),
        (("value", Space.TILE, DType.FP32),),
        outputs,
    )


def _of_rows(a: Algebra, acc: Any, value: Any) -> tuple[Any, ...]:
    largest = a.row_max(_value(a, acc, value))
    return (largest,) * len(FIRST)


ROWS = Program(
    "store_rows",
    _of_rows,
    (("value", Space.TILE, DType.FP32),),
    tuple(Out(d.value, d) for d in FIRST),
)
HEADS = Program(
    "store_heads",
    lambda a, acc, value: (_value(a, acc, value),) * 3,
    (("value", Space.TILE, DType.FP32),),
    (Out("q", None, True, 64), Out("wide", DType.FP32, True, 32), Out("quantised", DType.E4M3, True, 64)),
)
DTYPES = (
    *(Case(storing(FIRST, strided=False), 208, schedule=s) for s in SCHEDULES),
    *(Case(storing(REST, strided=False), 208, schedule=s) for s in WIDE_SCHEDULES),
    *(Case(storing(d, strided=False), 333) for d in (FIRST, REST)),
    *(Case(ROWS, 208, schedule=s) for s in SCHEDULES),
)
STRIDED = (
    *(
        Case(storing(d, strided=True), 208, schedule=s)
        for d in (FIRST[:4], FIRST[4:], REST)
        for s in WIDE_SCHEDULES
    ),
    # The other schedule has registers for one of them at a time.
    *(Case(storing((d,), strided=True), 208, schedule=SCHEDULES[1]) for d in (DType.BF16, DType.E4M3)),
)  # fmt: skip


def _limits() -> torch.Tensor:
    """float32 values around every limit and halfway between neighbours of every dtype."""
    base = [0.0, -0.0, 0.4, 0.5, 1.0, 1.5, 2.5, 126.5, 127.0, 127.9, 128.0, 129.0, 254.9, 255.0, 256.0, 300.0]
    base += [
        447.0,
        448.0,
        456.0,
        463.9,
        464.0,
        464.1,
        480.0,
        57344.0,
        61439.0,
        61440.0,
        65504.0,
        65519.0,
        65520.0,
    ]
    base += [2.0**31 - 128, 2.0**31, 2.0**33, 2.0**63, 2.0**70, 3.0e38, 3.3961e38, INF, NAN, 1e-30, 2.0**-149]
    for bits_of_mantissa in (2, 3, 7, 10):  # ties of e5m2, e4m3, bf16, fp16
        step = 2.0**-bits_of_mantissa
        base += [(1 + (i + 0.5) * step) * 2.0**e for i in range(4) for e in (-17, -10, -9, -7, 0, 5)]
        base += [(1 + (i + 0.5) * step + 2.0**-20) for i in range(4)]
    return torch.tensor([*base, *(-x for x in base)])


def with_limits(case: Case, lead: int | tuple[int, ...], device: str = "cuda") -> Tensors:
    """A is zero; the operand holds small numbers, and the limits at places that differ from row to row."""
    t = make_tensors(case, lead, 72, device=device)
    t.a.zero_()
    (value,) = t.operands
    flat, limits = value.view(-1), _limits().to(value.device)
    places = torch.randperm(flat.numel(), device=value.device)[: flat.numel() // 2]
    flat[places] = limits[torch.arange(places.numel(), device=value.device) % limits.numel()]
    return t


@pytest.mark.parametrize("case", DTYPES, ids=str)
def test_every_dtype(case: Case, kernels) -> None:
    for m in (1, 129, 1000):
        t = with_limits(case, m)
        if case.program is ROWS:
            t.operands[0].clamp_(max=2000.0)  # else every row's largest would be infinite
        check_exact(t, run_op(kernels, t), f"M = {m}")


@pytest.mark.parametrize("layout", ["columns", "slice", "aligned-slice", ""])
@pytest.mark.parametrize("case", STRIDED, ids=str)
def test_every_layout(case: Case, layout: str, kernels) -> None:
    for lead in (1, 129, (3, 43)):
        t = with_limits(case, lead)
        layouts = dict.fromkeys(t.output_names, layout)
        check_exact(t, run_op(kernels, t, layouts), f"M = {lead}")


@pytest.mark.parametrize("case", [Case(HEADS, 384, schedule=s) for s in WIDE_SCHEDULES], ids=str)
def test_heads(case: Case, kernels) -> None:
    for lead in ((1, 1), (2, 200), (5, 129), (2, 3, 64)):
        t = with_limits(case, lead)
        check_exact(t, run_op(kernels, t), f"M = {lead}")
        check_exact(t, run_op(kernels, t, dict.fromkeys(t.output_names, "slice")), f"M = {lead}, slice")


@pytest.mark.parametrize("case", [DTYPES[0], STRIDED[0], Case(HEADS, 384, schedule=SCHEDULES[0])], ids=str)
def test_outputs_that_the_op_allocates(case: Case, kernels) -> None:
    """They have the shapes of those that it is given, and the same bits."""
    t = with_limits(case, (3, 43))
    expected = t.outputs()
    run_op(kernels, t)
    results = ops.region(case.text(t.k), t.a, t.b[0], list(t.operands), [])
    found = run_op(kernels, t)
    for slot, result, tiles in zip(expected.slots, results, found, strict=True):
        assert result.shape == slot.view.shape
        assert result.dtype == slot.view.dtype
        assert result.is_contiguous()
        as_tiles = result.transpose(-3, -2).flatten(-2) if slot.heads else result
        assert same_bits(as_tiles.reshape(tiles.shape), tiles)
