"""Programs beyond a plain norm, by the plan that the planner chooses: operands and outputs of every kind."""

from __future__ import annotations

import pytest
import torch

from comfuse.generator.spec import DType, Space
from tests.gpu.compare import check
from tests.gpu.programs import (
    BIAS_GELU,
    LAYERNORM_MIXED,
    RELU_PRODUCT,
    SOFTMAX,
    gemma_chain,
    rmsnorm,
    row_quantisation,
)
from tests.gpu.support import Case, launcher, make_tensors, run, written

pytestmark = pytest.mark.gpu

CASES = (
    Case(BIAS_GELU, 200),
    Case(RELU_PRODUCT, 1000),  # two tile operands in one phase
    Case(LAYERNORM_MIXED, 768),  # float32 and fp16 operands beside bf16
    Case(LAYERNORM_MIXED, 768, DType.FP16),
    *(Case(rmsnorm(n, after=after, offset=offset), n)
      for n in (200, 1152, 5376) for after, offset in ((False, 0.0), (True, 0.0), (True, 1.0))),
    Case(SOFTMAX, 200),
    Case(SOFTMAX, 4104),
    Case(gemma_chain(768), 768),  # two tile outputs
    Case(gemma_chain(5376), 5376),
    Case(row_quantisation(200), 200),  # a column operand, and outputs of shape (M,)
    Case(row_quantisation(1000), 1000),
)  # fmt: skip
STRIDED = (Case(LAYERNORM_MIXED, 768), Case(row_quantisation(200), 200), Case(gemma_chain(768), 768))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    kernel = kernels(case)
    for m, k in ((1, 72), (129, 40), (1000, 1024), (16344, 64)):
        t = make_tensors(case, m, k)
        check(t, run(kernel, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", STRIDED, ids=str)
def test_rows_that_are_further_apart(case: Case, kernels) -> None:
    """A, B, tile operands and outputs as slices of wider matrices; what lies beside them stays as it is."""
    kernel = kernels(case)
    t = make_tensors(case, 257, 72)
    t.a, t.b = _widened(t.a), tuple(map(_widened, t.b))
    t.operands = tuple(_widened(o) if o.dim() == 2 else o for o in t.operands)
    tiles = [n for n, space in zip(t.output_names, t.output_spaces, strict=True) if space is Space.TILE]
    out = t.outputs(dict.fromkeys(tiles, "aligned-slice"))
    check(t, written(launcher(kernel, t, out), out))


def _widened(x: torch.Tensor) -> torch.Tensor:
    """The same values as a slice of a matrix with eight more columns on each side, which are NaN."""
    wide = torch.full((x.shape[0], x.shape[1] + 16), float("nan"), device=x.device, dtype=x.dtype)
    wide[:, 8:-8] = x
    return wide[:, 8:-8]


@pytest.mark.parametrize("case", [Case(RELU_PRODUCT, 1000)], ids=str)
def test_one_row_for_all(case: Case, kernels) -> None:
    """A stride of zero repeats one row of a tile operand."""
    t = make_tensors(case, 257, 72)
    gate, residual = t.operands
    t.operands = (gate, residual[3].expand(257, 1000))
    check(t, run(kernels(case), t))


@pytest.mark.parametrize("case", [Case(LAYERNORM_MIXED, 768), Case(row_quantisation(200), 200)], ids=str)
def test_vectors_with_strides(case: Case, kernels) -> None:
    """Every second entry of a longer vector, and one entry for all."""
    kernel = kernels(case)
    t = make_tensors(case, 257, 72)
    t.operands = tuple(o.repeat_interleave(2)[::2] if o.dim() == 1 else o for o in t.operands)
    assert all(o.stride(0) == 2 for o in t.operands if o.dim() == 1)
    check(t, run(kernel, t))
    t.operands = tuple(o[6:7].expand(o.shape) if o.dim() == 1 else o for o in t.operands)
    check(t, run(kernel, t))
