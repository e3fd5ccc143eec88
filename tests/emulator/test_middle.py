"""Reductions between the GEMMs of a chain, and batches, on an emulated GPU."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.launch import raw_launch
from comfuse.generator import catalog, emit
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan.chain import Weights, force_chain
from comfuse.generator.spec import DType, Major
from tests.emulator.build import EmulatedKernel
from tests.emulator.cases import emulated
from tests.emulator.test_chains import SHAPES, run, same
from tests.gpu.chains import ChainCase, Sizes, make_inputs

EXACT = {
    "less its sum": (Sizes(72, 200, 104), "2x64-b1-shared", Weights("streamed", 2)),
    "less its sum and more": (Sizes(8, 72, 40), "3x64-b1-registers", Weights("streamed", 2)),
    "counted ties": (Sizes(72, 328, 40), "2x64-b2-registers", Weights("resident_first", 2)),
}


@pytest.mark.parametrize("name", EXACT)
def test_middle_reductions_are_exact(name: str, tmp_path: Path, include: Path) -> None:
    sizes, shape, weights = EXACT[name]
    case = ChainCase(name, sizes, shape=SHAPES[shape])
    kernel = emulated(emit.emit_chain(replace(case.plan(), weights=weights)), tmp_path, include)
    for m, seed in ((1, 0), (129, 1), (641, 2)):
        i = make_inputs(case, m, integers=True, seed=seed, device="cpu")
        out = i.outputs()
        assert run(kernel, i, out, seed) == 0, kernel.error
        assert same(out.tensors, i.reference(round_middle=False)), (m, seed)
        out.check_guards()


@pytest.mark.parametrize("v_major", Major)
def test_attention_of_batches(v_major: Major, tmp_path: Path, include: Path) -> None:
    """Rounds in which a warpgroup has no tile; a bias that all batches share."""
    n, d, h = 72, 40, 200
    chain = catalog.attention(n, d, h, DType.BF16, bias=DType.FP32, v_major=v_major)
    plan = replace(force_chain(chain, SHAPES["3x64-b1-shared"]), weights=Weights("streamed", 2))
    kernel = emulated(emit.emit_chain(plan), tmp_path, include)
    for batch, m, seed in ((1, 1, 0), (5, 200, 1)):
        q, k, v = (drawn(batch, rows, width).bfloat16() for rows, width in ((m, d), (h, d), (h, n)))
        attend(kernel, chain, q, k, v, drawn(m, h), seed)


# Of (sequences, heads, M, H): what varies only with the sequence, only with the head, with both.
BIASES = [(2, 1), (1, 3), (2, 3)]


@pytest.mark.parametrize("strided", [False, True])
def test_attention_of_batches_in_two_levels(strided: bool, tmp_path: Path, include: Path) -> None:
    """Biases that repeat over heads or sequences, masks that repeat over rows too; keys and values of a head
    for several of the queries, heads between the rows.
    """
    n, d, h, m = 64, 40, 200, 100
    named = ("bias",) if strided else ()
    chain = catalog.attention(n, d, h, DType.BF16, bias=DType.BF16, strided=named)
    plan = replace(force_chain(chain, SHAPES["2x64-b2-registers"]), weights=Weights("streamed", 2))
    kernel = emulated(emit.emit_chain(plan), tmp_path, include)
    q = drawn(2, m, 3, d).bfloat16().transpose(1, 2).reshape(6, m, d)
    for seed, lead in enumerate(BIASES):
        k, v = (drawn(2, h, lead[1], width).bfloat16().transpose(1, 2) for width in (d, n))
        rows = [1, m] if strided else [m]
        for bias in (drawn(lead[0], row, lead[1], h).bfloat16().transpose(1, 2) for row in rows):
            attend(kernel, chain, q, k.expand(2, 3, h, d), v.expand(2, 3, h, n), bias, seed)
    if strided:  # rows that are not aligned
        wide = drawn(2, 1, m, h + 3).bfloat16()[..., 1 : h + 1]
        attend(kernel, chain, q, k.expand(2, 3, h, d), v.expand(2, 3, h, n), wide, 3)


def drawn(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def attend(
    kernel: EmulatedKernel,
    chain: ChainSpec,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor,
    seed: int,
) -> None:
    """Holds a launch against float64; ``k``, ``v`` and the bias may have two dimensions of batches."""
    (batch, m, d), h, n = q.shape, k.shape[-2], v.shape[-1]
    y = torch.full((batch, m, n), torch.nan).bfloat16()
    if bias.ndim == 4:
        bias = bias.expand(*k.shape[:2], m, h)
    kernel.configure(seed)
    factors = [k, v.mT.contiguous() if chain.last.b_major is Major.K else v.mT]
    launch, workspace, arguments = raw_launch(kernel.kernel, chain, q, factors, [bias], [y], [d**-0.5])
    assert launch(ctypes.byref(arguments), workspace.data_ptr(), None) == 0, kernel.error
    k, v = (t.reshape(batch, h, -1).double() for t in (k, v))
    added = bias.double().reshape(-1, m, h)
    exact = (q.double() @ k.mT * d**-0.5 + added).softmax(-1) @ v
    assert (y.double() - exact).norm() <= 4e-3 * exact.norm()
