"""A process that has not imported ComFuse: the binding alone, and the table of a library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec
from comfuse.library import builder, catalogue
from comfuse.ops import served
from tests.library.stubs import Compilers, compilers
from tests.ops.host_binding import Host

__all__ = ["compilers"]

LINEAR = catalog.linear(128, 64, DType.BF16, bias=DType.BF16, residual=DType.FP32)

#: Prints what a call gives whose kernel sets the first column to 1, then what the others say.
PROGRAM = """\
import ctypes, sys
import torch
library, folder, linear, alone = sys.argv[1:]
serve = ctypes.CDLL(library).comfuse_serve
serve.restype = ctypes.c_char_p
print(serve(b"/nothing"))
print(serve(folder.encode()))
ops = torch.ops.comfuse_host
x, w, bias = (torch.zeros(s, dtype=torch.bfloat16) for s in [(2, 3, 64), (128, 64), (128,)])
y = ops.region_1.t2(linear, x, w, bias, torch.zeros(2, 3, 128))
print(tuple(y.shape), y.dtype, y[..., 0].tolist())
print([(tuple(y.shape), y.dtype) for y in ops.region.alone(alone, x, w, [])])
for call in (
    lambda: ops.region_1.t2(linear, x, w, bias[1:], torch.zeros(2, 3, 128)),
    lambda: ops.region_1.t2(linear, x.repeat(50, 1, 1), w, bias, torch.zeros(300, 128)),
    lambda: ops.region_1.t0("another", x, w),
):
    try:
        call()
    except RuntimeError as e:
        print(str(e).splitlines()[0])
assert "comfuse" not in sys.modules
"""


def reductions() -> FusedSpec:
    """Three results and no operand."""
    b = SpecBuilder(128, 64, DType.BF16)
    acc = b.gemm()
    b.output("y", acc, DType.BF16)
    for op in ("row_max", "row_sum"):
        b.output(op, b.op(op, acc), DType.FP32)
    return b.spec()


@pytest.mark.slow
def test_it_runs_what_the_table_lists(loaded_host: Host, compilers: Compilers, tmp_path: Path) -> None:
    texts = [LINEAR.text(), reductions().text()]
    mine = catalogue.parse("mine", {"kernel": [{"spec": text, "rows": [128]} for text in texts]})
    folder = tmp_path / "library"
    served.write(folder, texts, builder.build_library([mine], folder))
    command = [sys.executable, "-c", PROGRAM, loaded_host.library._name, str(folder), *texts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    none, nothing, linear, alone, shape, rows, unknown = done.stdout.splitlines()
    assert "/nothing: comfuse: [LoadError] there is no table.txt, or it is of another version" in none
    assert nothing == "None"
    assert linear == "(2, 3, 128) torch.bfloat16 [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]"
    assert alone.count("((2, 3), torch.float32)") == 2
    assert "[ShapeError] bias is of shape (127,); allowed: (128,), for a of shape (2, 3, 64)" in shape
    for said in (rows, unknown):
        assert "[LoadError] no kernel that was registered serves this call" in said
        assert "export the model for this GPU and these numbers of rows" in said
