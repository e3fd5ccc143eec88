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

ROOT = Path(__file__).parents[2]
K, N = 128, 64


class Model(nn.Module):
    """Two regions: a layer with a residual and a norm, and one with three results and no operand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(K, K), nn.LayerNorm(K), nn.Linear(K, N, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.head(self.norm(self.layer(x) + x))
        return logits.relu(), logits.sum(-1), logits.amax(-1)


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
    torch's own loader too."""
    from tests.gpu.compare import relative_error, tolerance, weighty

    eager = model(device)
    exact = copy.deepcopy(eager).double()
    for loaded in (comfuse.load(path), torch._inductor.aoti_load_package(str(path))):
        for m in rows:
            x = torch.randn(m, K, device=device).bfloat16()
            for y, right, half in zip(loaded(x), exact(x.double()), eager(x), strict=True):
                allowed = max(tolerance(y.dtype, weighty(right)), 2 * relative_error(half, right))
                assert relative_error(y, right) <= allowed, (m, tuple(y.shape))


def runs(path: Path, device: str, *rows: int, processes: int = 1, **environment: str) -> Iterator[str]:
    """What is wrong with :func:`check` in processes without a compiler that start at once."""
    program = (
        f"from pathlib import Path\nfrom comfuse import fallbacks\nfrom tests.inductor import packaged\n"
        f"packaged.check(Path({str(path)!r}), {device!r}, *{rows})\nassert not fallbacks.counts()\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMFUSE", "CUDA_"))}
    without = {"PATH": "/nothing", "CUDA_HOME": "/nothing", "COMFUSE_CUTLASS_DIR": "/nothing"}
    without |= {"COMFUSE_CACHE_DIR": "/proc/nothing", "COMFUSE_JIT": "off", "COMFUSE_STRICT": "1"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**kept, **without, "PYTHONPATH": path, **environment}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(processes)
    ]  # fmt: skip
    for process in started:
        _, errors = process.communicate(timeout=300)
        yield "" if process.returncode == 0 else errors
