"""Tile operands behind a chain's last GEMM on an emulated GPU: held as a whole, and read from A's rows."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.launch import raw_launch
from comfuse.generator import emit
from comfuse.generator.plan.chain import CHAIN_SHAPES
from comfuse.generator.spec import DType
from tests.emulator.build import EmulatedKernel, spoilt
from tests.emulator.cases import emulated
from tests.gpu.chains import ChainCase, ChainInputs, Sizes, make_inputs

SHAPES = {shape.name: shape for shape in CHAIN_SHAPES}
#: Where A is read: its rows have two stages, are loaded to registers, are narrower than a block, or have one
#: stage and the slots are the other.
OF_ROWS = {
    "two stages": ChainCase("residual behind a peak", Sizes(72, 136, 72), shape=SHAPES["2x64-b2-shared"]),
    "registers": ChainCase("residual", Sizes(104, 72, 104), DType.FP16, SHAPES["2x64-b2-registers"]),
    "narrow": ChainCase("residual", Sizes(40, 72, 40), shape=SHAPES["2x64-b1-shared"]),
    "one stage": ChainCase("residual of three", Sizes(128, 128, 128, 128), shape=SHAPES["3x64-b1-shared"]),
}
ONE_STAGE = "one stage"
TWO_TILES = ChainCase("two residuals", Sizes(104, 72, 104), shape=SHAPES["2x64-b1-shared"])


def kernel_of(case: ChainCase, folder: Path, include: Path) -> EmulatedKernel:
    return emulated(emit.emit_chain(case.plan()), folder, include)


def is_exact(kernel: EmulatedKernel, i: ChainInputs, seed: int) -> bool:
    factors, rest = i.split
    out = i.outputs()
    launch, workspace, arguments = raw_launch(
        kernel.kernel, i.case.chain, i.a, factors, rest, out.tensors, i.scalars
    )
    kernel.configure(seed)
    if launch(ctypes.byref(arguments), workspace.data_ptr(), None) != 0:
        return False
    out.check_guards()
    wanted = i.reference(round_middle=True)
    return all(torch.equal(y, exact.to(y.dtype)) for y, exact in zip(out.tensors, wanted, strict=True))


@pytest.mark.parametrize("name", OF_ROWS)
def test_an_operand_may_be_a_itself(name: str, tmp_path: Path, include: Path) -> None:
    """One kernel, whether it is or not: for one tile, and for several a warpgroup and uneven ends."""
    case = OF_ROWS[name]
    assert case.plan().rows_operand is not None
    kernel = kernel_of(case, tmp_path, include)
    for m, seed in ((1, 0), (1201, 1), (641, 2)):
        i = make_inputs(case, m, integers=True, seed=seed, device="cpu")
        assert is_exact(kernel, i, seed), (m, kernel.error)
        assert is_exact(kernel, i.of_itself(), seed), (m, kernel.error)


def test_rows_at_another_stride_are_not_a(tmp_path: Path, include: Path) -> None:
    """The operand begins where A does, but is another matrix."""
    case = OF_ROWS["narrow"]
    kernel = kernel_of(case, tmp_path, include)
    i = make_inputs(case, 130, integers=True, device="cpu")
    wide = torch.randint(-1, 2, (2 * 130, case.sizes.k)).to(i.a.dtype)
    other = replace(i, a=wide[::2]).of_itself()
    operands = [wide[:130] if t is other.a else t for t in other.operands]
    assert any(t is not u for t, u in zip(operands, other.operands, strict=True))
    assert is_exact(kernel, replace(other, operands=operands), 0), kernel.error


def test_two_operands_are_held_as_a_whole(tmp_path: Path, include: Path) -> None:
    plan = TWO_TILES.plan()
    assert plan.rows_operand is None
    assert plan.tile_slots == 2 * plan.tile_n // 32
    kernel = emulated(emit.emit_chain(plan), tmp_path, include)
    for m, seed in ((65, 0), (1201, 1)):
        assert is_exact(kernel, make_inputs(TWO_TILES, m, integers=True, seed=seed, device="cpu"), seed)


FAULTS: dict[str, tuple[str, str, str]] = {
    "rows are handed back when the GEMM has read them": (
        "chain_mainloop.hpp",
        "if (Kernel::rows_are_operand(params_)) return;",
        "",
    ),
    "a tile is handed back before it is read": (
        "chain_kernel.hpp",
        "epilogue.run(reinterpret_cast<Accumulator&>(results), item);\n"
        "      epilogue.ring().release_tile(params, shared.rows_empty + rows.stage);",
        "epilogue.ring().release_tile(params, shared.rows_empty + rows.stage);\n"
        "      epilogue.run(reinterpret_cast<Accumulator&>(results), item);",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault: str, tmp_path: Path) -> None:
    """As errors or wrong results."""
    case = OF_ROWS[ONE_STAGE]
    kernel = kernel_of(case, tmp_path, spoilt(tmp_path, *FAULTS[fault]))
    i = make_inputs(case, 1201, integers=True, device="cpu").of_itself()
    assert not all(is_exact(kernel, i, seed) for seed in range(3))
