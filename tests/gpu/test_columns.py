"""Reductions of columns and of everything, beside tiles and rows: right, and the same bits every time.

Repeated launches, streams and graphs of these programs are in test_repeats.py.
"""

from __future__ import annotations

import pytest
import torch

from tests.gpu.compare import check, check_exact, same_bits
from tests.gpu.outputs import Outputs
from tests.gpu.reductions import (
    ALL_AXES,
    COLUMN_FIELDS,
    COLUMN_PLAIN,
    FULL_FIELDS,
    FULL_PLAIN,
    RELU_SUM,
    SCHEDULES,
    WIDE_SCHEDULES,
)
from tests.gpu.support import Case, caller, make_tensors, run_kernel

pytestmark = pytest.mark.gpu

MS = (1, 127, 129, 1000, 16344)
EXACT = (
    *(Case(p, 200, schedule=s) for p in COLUMN_PLAIN for s in WIDE_SCHEDULES),
    *(Case(p, 200, schedule=s) for p in (FULL_PLAIN, RELU_SUM) for s in SCHEDULES),
    *(Case(p, 1096) for p in COLUMN_PLAIN),
)
CLOSE = (
    *(Case(p, 200, schedule=s) for p in (COLUMN_FIELDS, ALL_AXES) for s in WIDE_SCHEDULES),
    *(Case(FULL_FIELDS, 200, schedule=s) for s in SCHEDULES),
    *(Case(p, 1096) for p in (FULL_FIELDS, ALL_AXES)),
)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    """As far as float32 counts: products that are mostly zero keep the sums of squares below 2^24."""
    for m in MS:
        if case.program is FULL_PLAIN and m > 1000:
            continue
        t = make_tensors(case, m, 72, integers=True)
        t.a[..., 2:] = 0
        check_exact(t, run_kernel(kernels, t), f"M = {m}")


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m in MS:
        t = make_tensors(case, m, 72, row_offset=2.0)
        check(t, run_kernel(kernels, t), f"M = {m}")


# More row blocks than one merge takes, 258 of 128 rows, of which the last has one; and so many that segments
# have all their row blocks, and others but one.
MANY = 256 * 128 + 128 + 1
MORE = 1030 * 128 + 5


@pytest.mark.parametrize("case", [Case(COLUMN_PLAIN[0], 200), Case(COLUMN_PLAIN[1], 1096)], ids=str)
def test_many_row_blocks_are_exact(case: Case, kernels) -> None:
    t = make_tensors(case, MANY, 72, integers=True)
    t.a[..., 2:] = 0
    check_exact(t, run_kernel(kernels, t), f"M = {MANY}")


@pytest.mark.parametrize("case", [Case(COLUMN_FIELDS, 200), Case(ALL_AXES, 200)], ids=str)
@pytest.mark.parametrize("m", [MANY, MORE])
def test_many_row_blocks_against_float64(case: Case, m: int, kernels) -> None:
    t = make_tensors(case, m, 72, row_offset=2.0)
    outputs = t.outputs()
    call = caller(kernels, t, outputs)
    call()
    check(t, outputs.tiles, f"M = {m}")
    first = [x.clone() for x in outputs.tiles]
    for _ in range(3):
        _again(outputs, call, first, f"M = {m} again")


@pytest.mark.parametrize(
    "case", [Case(p, 200, schedule=s) for p in COLUMN_PLAIN[:2] for s in WIDE_SCHEDULES], ids=str
)
def test_nan_spoils_its_column_alone(case: Case, kernels) -> None:
    t = make_tensors(case, 1000, 8, integers=True)
    before = run_kernel(kernels, t)
    t.operands[0][700, 131] = float("nan")
    after = run_kernel(kernels, t)
    others = torch.arange(200, device=t.a.device) != 131
    for x, y in zip(before, after, strict=True):
        assert bool(torch.isnan(y[131]))
        assert same_bits(x[others], y[others])


SHARED = (Case(COLUMN_FIELDS, 200), Case(FULL_FIELDS, 1096), Case(ALL_AXES, 200))


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_m_changes_on_one_workspace(case: Case, kernels) -> None:
    """The op keeps one workspace for all M with as many row blocks; counters have to come back to zero."""
    ms = (1000, 1024, 897, 130, 256)
    inputs = {m: make_tensors(case, m, 72, row_offset=2.0) for m in ms}
    outs = {m: t.outputs() for m, t in inputs.items()}
    calls = {m: caller(kernels, t, outs[m]) for m, t in inputs.items()}
    first: dict[int, list[torch.Tensor]] = {}
    for m in ms:
        calls[m]()
        check(inputs[m], outs[m].tiles, f"M = {m}")
        first[m] = [x.clone() for x in outs[m].tiles]
    for m in (1024, 1000, 897, 1000, 130, 256, 1024, 130, 130, 897, 256):
        _again(outs[m], calls[m], first[m], f"M = {m}")


def _again(out: Outputs, call, first: list[torch.Tensor], where: str) -> None:
    out.poison()
    call()
    torch.cuda.synchronize()
    out.check_guards()
    for x, y in zip(first, out.tiles, strict=True):
        assert same_bits(x, y), where
