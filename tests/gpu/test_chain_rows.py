"""Tile operands behind a chain's last GEMM: held as a whole, and read from A's rows where they are A."""

from __future__ import annotations

import itertools

import pytest
import torch

from comfuse.generator.plan.chain import CHAIN_SHAPES
from tests.gpu.chains import RESIDUALS, ChainCase, Sizes, make_inputs
from tests.gpu.compare import same_bits
from tests.gpu.test_chain import check_exact, run

pytestmark = pytest.mark.gpu

#: Two tiles of N to the slots, one, and parts of blocks.
SIZES = (Sizes(64, 256, 64, 64), Sizes(128, 128, 128, 128), Sizes(72, 136, 72, 72))
EXACT = tuple(
    ChainCase(program, sizes, shape=shape)
    for program, sizes, shape in itertools.product(RESIDUALS, SIZES, CHAIN_SHAPES)
)
ROUNDED = tuple(
    ChainCase("edge", Sizes(128, 128, 128), shape=shape) for shape in (None, *CHAIN_SHAPES)
) + tuple(
    ChainCase("edge network", Sizes(128, 128, 128, 128), shape=shape) for shape in (None, *CHAIN_SHAPES)
)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_exact_whether_it_is_a_or_not(case: ChainCase, kernels) -> None:
    kernel = kernels(case)
    for m in (1, 65, 1000, 20001):
        other = make_inputs(case, m, integers=True)
        for i in (other, other.of_itself()):
            out = i.outputs()
            check_exact(i, run(i, i.launcher(kernel, out), out))


@pytest.mark.parametrize("case", ROUNDED, ids=str)
def test_the_same_bits_whether_it_is_a_or_a_copy(case: ChainCase, kernels) -> None:
    """At sizes where each warpgroup takes tens of tiles in turn; repeated."""
    kernel = kernels(case)
    i = make_inputs(case, 400001).of_itself()
    copied = make_inputs(case, 400001).of_itself()
    copied.operands[:] = [t.clone() if t is copied.a else t for t in copied.operands]
    wanted = copied.outputs()
    copied.launcher(kernel, wanted)()
    out = i.outputs()
    launch = i.launcher(kernel, out)
    for _ in range(20):
        out.poison()
        launch()
        torch.cuda.synchronize()
        assert all(same_bits(x, y) for x, y in zip(out.tensors, wanted.tensors, strict=True))
    out.check_guards()
