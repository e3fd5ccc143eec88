"""A model in a package of AOTInductor, in the process that makes it and in one that only runs it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import comfuse
from comfuse.reference.accuracy import relative_error, tolerance, weighty
from tests.processes import ROOT, python_path

K, N = 128, 64
_MANY = 1000
#: For a process that has a compiler: torch's loader compiles programs to learn which vectors the CPU has, and
#: compares that with what the package says, which is exported without.
NO_VECTORS = {"TORCHINDUCTOR_VEC_ISA_OK": "0"}


class Model(nn.Module):
    """Two regions: a layer with a residual and a norm, whose result is one of the model's, and one with three
    results and no operand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(K, K), nn.LayerNorm(K), nn.Linear(K, N, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = self.norm(self.layer(x) + x)
        logits = self.head(h)
        return h, logits.relu(), logits.sum(-1), logits.amax(-1)


def model(device: str) -> Model:
    torch.manual_seed(0)
    return Model().to(device, torch.bfloat16).eval()


def export(folder: Path, device: str, *, rows: int | None = None) -> Path:
    """The model's package; ``rows``: their number, None where it may be any."""
    x = torch.randn(rows or 24, K, device=device).bfloat16()
    shapes = None if rows else ({0: torch.export.Dim("rows", min=1, max=100_000)},)
    with torch.no_grad():
        program = torch.export.export(model(device), (x,), dynamic_shapes=shapes)
    # The code around the kernels does next to nothing: it need not be fast.
    configs = {"aot_inductor.compile_wrapper_opt_level": "O0", "cpp.vec_isa_ok": False}
    return comfuse.export(program, folder / "model.pt2", force=True, **configs)


def check(path: Path, device: str, *rows: int) -> None:
    """The package is as near to float64 as the rounding of the results, or twice eager's error, allows; by
    torch's own loader too.

    Eager's error of a result is the root mean square over many rows: of a single value it may be none by
    chance.
    """
    eager = model(device)
    exact = copy.deepcopy(eager).double()
    x = torch.randn(max(_MANY, *rows), K, device=device).bfloat16()
    with torch.no_grad():
        expected = list(zip(exact(x.double()), eager(x), strict=True))
        for loaded in (comfuse.load(path), torch._inductor.aoti_load_package(str(path))):
            for m in rows:
                for y, (right, half) in zip(loaded(x[:m]), expected, strict=True):
                    usual = (half.double() - right).norm() * (m / len(x)) ** 0.5
                    right = right[:m]
                    allowed = max(tolerance(y.dtype, weighty(right)), 2 * float(usual / right.norm()))
                    error = relative_error(y, right)
                    assert error <= allowed, f"{tuple(y.shape)}: error {error:.2e}, {allowed:.2e} allowed"


def runs(path: Path, device: str, *rows: int, processes: int = 1, **environment: str) -> Iterator[str]:
    """What is wrong with :func:`check` in processes without a compiler that start at once."""
    program = (
        f"from pathlib import Path\nfrom comfuse import fallbacks\nfrom tests.inductor import packaged\n"
        f"packaged.check(Path({str(path)!r}), {device!r}, *{rows})\nassert not fallbacks.counts()\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMFUSE", "CUDA_"))}
    without = {"PATH": "/nothing", "CUDA_HOME": "/nothing", "COMFUSE_CUTLASS_DIR": "/nothing"}
    without |= {"COMFUSE_CACHE_DIR": "/proc/nothing", "COMFUSE_JIT": "off", "COMFUSE_STRICT": "1"}
    environment = {**kept, **without, "PYTHONPATH": python_path(), **environment}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(processes)
    ]  # fmt: skip
    for process in started:
        _, said = process.communicate(timeout=300)
        if process.returncode == 0:
            yield ""
        else:  # from its traceback on: torch's log may say much before
            yield f"exit status {process.returncode}: {''.join(said.rpartition('Traceback')[1:])}"
