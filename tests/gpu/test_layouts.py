"""A and B in all four layouts, read in place; batches, each with a program of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from comfuse import fallbacks
from comfuse.generator.spec import DType, Major
from tests.gpu.compare import check, check_exact, same_bits
from tests.gpu.programs import BARE, LAYERNORM, row_quantisation
from tests.gpu.reductions import DIFFERENCE, SCHEDULES, SCHEDULES_OF_TWO, WIDE_SCHEDULES
from tests.gpu.support import Case, laid_out, make_tensors, run_op

pytestmark = pytest.mark.gpu

LAYOUTS = tuple((a, b) for a in Major for b in Major)
MAJORS = LAYOUTS[1:]  # the other tests have the first
EXACT = (
    *(Case(BARE, 200, schedule=s, a_major=a, b_major=b) for a, b in MAJORS for s in SCHEDULES),
    *(Case(DIFFERENCE, 200, schedule=s, b_major=Major.MN) for s in SCHEDULES_OF_TWO),
)
CLOSE = (
    *(Case(LAYERNORM, 520, a_major=a, b_major=b) for a, b in MAJORS),
    Case(LAYERNORM, 520, DType.FP16, a_major=Major.MN),
)
BATCHED = (
    *(Case(LAYERNORM, 200, schedule=s, batched=True) for s in SCHEDULES),
    *(Case(row_quantisation(200), 200, schedule=s, batched=True) for s in WIDE_SCHEDULES),
    Case(LAYERNORM, 768, DType.FP16, batched=True),
    Case(LAYERNORM, 200, a_major=Major.MN, b_major=Major.MN, batched=True),
    Case(row_quantisation(100), 100, batched=True),
)


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    fallbacks.reset()
    yield
    fallbacks.reset()


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (257, 200), (1000, 1024)):
        t = make_tensors(case, m, k, integers=True)
        check_exact(t, run_op(kernels, t), f"M = {m}, K = {k}")
    assert fallbacks.counts() == {}


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in ((1, 8), (129, 72), (16344, 64)):
        t = make_tensors(case, m, k)
        check(t, run_op(kernels, t), f"M = {m}, K = {k}")
    assert fallbacks.counts() == {}


@pytest.mark.parametrize("case", EXACT[::3], ids=str)
def test_rows_that_are_further_apart(case: Case, kernels) -> None:
    """Read in place where they lie at multiples of 16 bytes; else copied, which is counted."""
    t = make_tensors(case, 257, 72, integers=True)
    plain = run_op(kernels, t)
    a, b = t.a, t.b
    t.a = laid_out(a, case.a_major, extra=24)
    t.b = tuple(laid_out(x, case.b_major, extra=40) for x in b)
    for x, y in zip(plain, run_op(kernels, t), strict=True):
        assert same_bits(x, y)
    assert fallbacks.counts() == {}
    t.a = laid_out(a, case.a_major, extra=1)
    t.b = tuple(laid_out(x, case.b_major, extra=3) for x in b)
    for x, y in zip(plain, run_op(kernels, t), strict=True):
        assert same_bits(x, y)
    assert sum(fallbacks.counts().values()) > 0


@pytest.mark.parametrize("case", BATCHED, ids=str)
def test_batches(case: Case, kernels) -> None:
    """Every operand a batch's own, some shared, all shared."""
    names = ("b", *(o.name for o in case.program.operands))
    for batches, m, shared in (
        (1, 127, ()),
        (3, 1, names[::2]),
        (3, 129, names),
        (24, 129, ("b",)),
        (24, 300, names[1::2]),
    ):
        t = make_tensors(case, (batches, m), 72, shared=shared)
        check(t, run_op(kernels, t), f"{batches} batches, M = {m}, shared: {', '.join(shared)}")
    assert fallbacks.counts() == {}


@pytest.mark.parametrize("case", BATCHED[:1], ids=str)
def test_a_batch_alone_gives_the_same_bits(case: Case, kernels) -> None:
    t = make_tensors(case, (5, 129), 72, shared=("bias", "ln_weight", "ln_bias"))
    (together,) = run_op(kernels, t)
    for i in range(5):
        alone = make_tensors(case, (1, 129), 72)
        alone.a, alone.b = t.a[i : i + 1], tuple(b[i : i + 1] for b in t.b)
        alone.operands = tuple(x[i : i + 1] if x.dim() == 3 else x for x in t.operands)
        (y,) = run_op(kernels, alone)
        assert same_bits(y[0], together[i])
