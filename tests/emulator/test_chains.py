"""The kernels of chains, run on an emulated GPU: exact on integers whatever comes first.

The emulator runs the device's own headers, thread by thread.  TMA delivers in any order, wgmmas read their
registers and shared memory when they are waited for or before, and warps are slow at random: a slot that is
overwritten too early, a wait that is missing, a barrier of a wrong count give a wrong result or an error.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.launch import forced_plan, raw_launch
from comfuse.generator import catalog, emit
from comfuse.generator.plan.chain import CHAIN_SHAPES, ChainPlan, Weights
from comfuse.generator.spec import DType
from tests.emulator.build import EmulatedKernel, spoilt
from tests.emulator.cases import emulated
from tests.gpu.chains import ChainCase, ChainInputs, Sizes, make_inputs
from tests.gpu.outputs import Outputs

SHAPES = {shape.name: shape for shape in CHAIN_SHAPES}
#: Blocks that are partial in K, H and N, rings as short as can be, an operand of every kind in both links.
PLANS = {
    "gated-streamed": (
        ChainCase("gated operands", Sizes(72, 200, 104), shape=SHAPES["2x64-b1-shared"]),
        Weights("streamed", 2),
    ),
    "six-blocks-first-weights-stay": (
        ChainCase("operands", Sizes(72, 328, 40), DType.FP16, SHAPES["2x64-b2-registers"]),
        Weights("resident_first", 2),
    ),
    "three-warpgroups-streamed": (
        ChainCase("relu", Sizes(8, 136, 64), shape=SHAPES["3x64-b1-registers"]),
        Weights("streamed", 2),
    ),
}
#: Three GEMMs, of widths that differ, partial in each: all weights on the chip,
#: the first ones, none.
PLANS |= {
    "three-stay": (
        ChainCase("three", Sizes(72, 136, 40, 104), shape=SHAPES["3x64-b1-shared"]),
        Weights("resident", 0),
    ),
    "three-first-stays": (
        ChainCase("three operands", Sizes(72, 200, 72, 136), shape=SHAPES["2x64-b2-shared"]),
        Weights("resident_first", 2),
    ),
    "three-streamed": (
        ChainCase("three operands", Sizes(40, 328, 104, 200), DType.FP16, SHAPES["2x64-b1-registers"]),
        Weights("streamed", 2),
    ),
}
SPOILT, SPOILT_OF_THREE = "three-warpgroups-streamed", "three-streamed"  # the plans that faults are tried on


def plan_of(name: str) -> ChainPlan:
    case, weights = PLANS[name]
    return replace(case.plan(), weights=weights)


def run(kernel: EmulatedKernel, i: ChainInputs, out: Outputs, seed: int) -> int:
    factors, rest = i.split
    launch, workspace, arguments = raw_launch(
        kernel.kernel, i.case.chain, i.a, factors, rest, out.tensors, i.scalars
    )
    kernel.configure(seed)
    return launch(ctypes.byref(arguments), workspace.data_ptr(), None)


def same(results: tuple[Tensor, ...], wanted: list[Tensor]) -> bool:
    return all(
        torch.equal(y.double(), exact.to(y.dtype).double()) for y, exact in zip(results, wanted, strict=True)
    )


@pytest.mark.parametrize("name", PLANS)
def test_chains_are_exact(name: str, tmp_path: Path, include: Path) -> None:
    """For a part of a tile, for warpgroups without one, for several tiles each and uneven ends."""
    kernel = emulated(emit.emit_chain(plan_of(name)), tmp_path, include)
    for m, seed in ((1, 0), (129, 1), (1201, 2), (641, 3)):
        i = make_inputs(PLANS[name][0], m, integers=True, seed=seed, device="cpu")
        out = i.outputs()
        assert run(kernel, i, out, seed) == 0, kernel.error
        assert same(out.tensors, i.reference(round_middle=True)), (m, seed)
        out.check_guards()


def test_a_single_gemm_is_exact(tmp_path: Path, include: Path) -> None:
    """The emulator on a kernel that is known to be right on a GPU."""
    spec = catalog.linear(104, 72, DType.BF16, bias=DType.BF16, out=DType.FP32)
    source = emit.emit(forced_plan(spec, "pingpong-128x128", 1))
    kernel = emulated(source, tmp_path, include)
    a, b = (torch.randint(-3, 4, size).bfloat16() for size in ((641, 72), (104, 72)))
    bias, y = torch.randint(-3, 4, (104,)).bfloat16(), torch.full((641, 104), float("nan"))
    kernel.configure(0)
    launch, workspace, arguments = raw_launch(kernel.kernel, spec, a, [b], [bias], [y])
    assert launch(ctypes.byref(arguments), workspace.data_ptr(), None) == 0, kernel.error
    assert torch.equal(y, a.float() @ b.float().t() + bias.float())


#: Changes to the device's headers, of which those to chain_further.hpp are of a plan of three GEMMs.
FAULTS: dict[str, tuple[str, str, str]] = {
    "an absent tile's weights are not passed over": (
        "chain_kernel.hpp",
        "++i)\n        weights.skip_tile();",
        "++i)\n        ;",
    ),
    "a slot is free when all warps but one have read it": (
        "chain_factors.hpp",
        "init(&empty(i), 4 * kWarpgroups)",
        "init(&empty(i), 4 * kWarpgroups - 1)",
    ),
    "rows are handed back before a GEMM has taken them": (
        "chain_mainloop.hpp",
        "load_rows();\n    multiply_first<0>(0);\n"
        "    if constexpr (Factors::kRowsInRegisters) free_rows(tile);",
        "load_rows(), free_rows(tile);\n    multiply_first<0>(0);",
    ),
    "a barrier expects a box too few": (
        "chain_factors.hpp",
        "arrive_and_expect_tx(full, kFirstBytes)",
        "arrive_and_expect_tx(full, kFirstBytes - kBlockBytes)",
    ),
    "a further block is freed before it is read": (
        "chain_further.hpp",
        "cute::warpgroup_wait<0>();\n      weights_.free_later(0);",
        "weights_.free_later(0);",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault: str, tmp_path: Path) -> None:
    """As errors or wrong results."""
    changes = FAULTS[fault]
    plan = SPOILT_OF_THREE if changes[0] == "chain_further.hpp" else SPOILT
    kernel = emulated(emit.emit_chain(plan_of(plan)), tmp_path, spoilt(tmp_path, *changes))
    i = make_inputs(PLANS[plan][0], 1201, integers=True, device="cpu")
    wanted = i.reference(round_middle=True)
    seen = []
    for seed in range(3):
        out = i.outputs()
        seen.append(run(kernel, i, out, seed) == 0 and same(out.tensors, wanted))
    assert not all(seen)
