"""Reductions between the GEMMs of a chain, and batches, on an emulated GPU."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.launch import raw_launch
from comfuse.generator import catalog, emit
from comfuse.generator.plan.chain import Weights, force_chain
from comfuse.generator.spec import DType, Major
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
    generator = torch.Generator().manual_seed(0)
    for batch, m, seed in ((1, 1, 0), (5, 200, 1)):
        q, k, v = (
            torch.randn(batch, rows, width, generator=generator).bfloat16()
            for rows, width in ((m, d), (h, d), (h, n))
        )
        bias, y = torch.randn(m, h, generator=generator), torch.full((batch, m, n), torch.nan).bfloat16()
        kernel.configure(seed)
        factors = [k, v.mT.contiguous() if v_major is Major.K else v.mT]
        launch, workspace, arguments = raw_launch(kernel.kernel, chain, q, factors, [bias], [y], [d**-0.5])
        assert launch(ctypes.byref(arguments), workspace.data_ptr(), None) == 0, kernel.error
        exact = (q.double() @ k.double().mT * d**-0.5 + bias.double()).softmax(-1) @ v.double()
        assert (y.double() - exact).norm() <= 4e-3 * exact.norm()
