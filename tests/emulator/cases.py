"""The GPU tests' cases, launched on an emulated GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from bench.launch import raw_launch
from comfuse.errors import ToolchainError
from comfuse.generator import emit
from comfuse.library import abi
from tests.emulator.build import EmulatedKernel, build
from tests.gpu.outputs import Outputs
from tests.gpu.support import Case, Tensors


def emulated(source: emit.KernelSource, folder: Path, include: Path, processors: int = 2) -> EmulatedKernel:
    """Skips the test where there is no compiler."""
    try:
        return build(source, folder, include, processors)
    except ToolchainError as e:
        pytest.skip(str(e))


def kernel_of(case: Case, folder: Path, include: Path, processors: int = 2) -> EmulatedKernel:
    return emulated(emit.emit(case.plan()), folder, include, processors)


def launched(kernel: EmulatedKernel, t: Tensors, *, seed: int, launches: int = 1) -> Outputs:
    """What the last of some launches gives, which share a workspace; A's rows are others in those before."""
    out = t.outputs()
    launch, workspace, arguments = raw_launch(
        kernel.kernel, t.case.spec, t.a, t.b, t.operands, out.tensors, t.program.scalars
    )
    kernel.configure(seed)
    a = t.a.clone()
    for i in reversed(range(launches)):
        t.a.copy_(torch.roll(a, i, -2))
        out.poison()
        code = launch(ctypes.byref(arguments), workspace.data_ptr(), None)
        assert code == 0, kernel.error or abi.describe(code)
    out.check_guards()
    return out
