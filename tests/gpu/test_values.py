"""Special values: where NaN and Inf go, sums beyond fp16's range, rows whose mean dwarfs their spread."""

from __future__ import annotations

import pytest
import torch

from comfuse.generator.spec import DType
from comfuse.reference.accuracy import relative_error
from tests.gpu.compare import check, same_bits
from tests.gpu.programs import BIAS, LAYERNORM, RELU_PRODUCT, SOFTMAX
from tests.gpu.support import Case, Tensors, launcher, make_tensors, run

pytestmark = pytest.mark.gpu

NORMS = tuple(
    Case(p, 768, schedule=s)
    for p in (LAYERNORM, SOFTMAX)
    for s in ("pingpong-128x128", "cooperative-128x256")
)
LAYERNORMS = tuple(Case(LAYERNORM, n) for n in (64, 768, 5376))
M, K = 257, 72
ROW, COLUMN = 131, 333


def _launch(kernel, t: Tensors) -> torch.Tensor:
    out = t.outputs()
    launcher(kernel, t, out)()
    torch.cuda.synchronize()
    return out.tensors[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("case", NORMS, ids=str)
def test_one_element_of_a_spoils_exactly_its_row(case: Case, value: float, kernels) -> None:
    kernel = kernels(case)
    t = make_tensors(case, M, K)
    clean = _launch(kernel, t)
    t.a[ROW, 5] = value
    spoilt = _launch(kernel, t)
    others = torch.arange(M, device=clean.device) != ROW
    assert same_bits(spoilt[others], clean[others])
    (reference,) = t.reference(torch.tensor([ROW], device=t.a.device))
    assert torch.equal(torch.isnan(spoilt[ROW]), torch.isnan(reference[0]))
    assert bool(torch.isnan(spoilt[ROW]).any())


@pytest.mark.parametrize("case", NORMS, ids=str)
def test_nan_in_the_bias_spoils_all_rows(case: Case, kernels) -> None:
    kernel = kernels(case)
    t = make_tensors(case, M, K)
    t.operands[0][COLUMN] = float("nan")
    assert bool(torch.isnan(_launch(kernel, t)).all())


@pytest.mark.parametrize("case", [Case(RELU_PRODUCT, 1000)], ids=str)
def test_nan_without_a_reduction_stays_in_its_element(case: Case, kernels) -> None:
    """Also through relu, whose maximum with zero must not swallow it."""
    kernel = kernels(case)
    t = make_tensors(case, M, K)
    clean = _launch(kernel, t)
    t.operands[0][ROW, COLUMN] = float("nan")
    spoilt = _launch(kernel, t)
    expected = torch.zeros_like(clean, dtype=torch.bool)
    expected[ROW, COLUMN] = True
    assert torch.equal(torch.isnan(spoilt), expected)
    assert same_bits(spoilt[~expected], clean[~expected])
    t.a[5, 0] = float("nan")
    assert bool(torch.isnan(_launch(kernel, t)[5]).all())


@pytest.mark.parametrize("case", [Case(LAYERNORM, 768, DType.FP16)], ids=str)
def test_overflow_of_fp16_stays_finite_inside(case: Case, kernels) -> None:
    """Sums of about 1e5 overflow fp16, in which eager keeps them; ours are normalised in float32."""
    t = make_tensors(case, M, 1024)
    t.a.mul_(40)
    t.b[0].mul_(1024**0.5 * 40)
    assert float((t.a.double() @ t.b[0].double().t()).abs().max()) > 65504
    check(t, run(kernels(case), t))


@pytest.mark.parametrize("case", [Case(BIAS, 200, DType.FP16)], ids=str)
def test_an_output_beyond_fp16_is_infinite(case: Case, kernels) -> None:
    t = make_tensors(case, M, 1024)
    t.a.fill_(16.0)
    t.b[0].fill_(16.0)
    assert bool(torch.isinf(_launch(kernels(case), t)).all())


@pytest.mark.parametrize("case", LAYERNORMS, ids=str)
def test_rows_with_a_mean_of_a_thousand(case: Case, kernels) -> None:
    """E[x^2] - E[x]^2 in float32 would lose the variance here."""
    t = make_tensors(case, 1000, K, row_offset=1000.0)
    (output,) = run(kernels(case), t)
    (reference,) = t.reference()
    assert relative_error(output[t.rows], reference) <= 2.0e-3


@pytest.mark.parametrize("case", [Case(RELU_PRODUCT, 1000), *LAYERNORMS], ids=str)
def test_zeros(case: Case, kernels) -> None:
    """A row of zeros has no variance: eps alone keeps it finite."""
    t = make_tensors(case, 129, K)
    t.a.zero_()
    for o in t.operands:
        o.zero_()
    assert bool((run(kernels(case), t)[0] == 0).all())
