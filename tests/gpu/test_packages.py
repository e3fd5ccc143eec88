"""A model in a package of AOTInductor with its library: in eight processes at once that have no compiler,
against float64, and in one without ComFuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from comfuse import deploy
from comfuse.errors import LoadError
from comfuse.library import manifest, package
from tests.inductor import packaged

# One worker runs them all, and exports the package once.
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("packages")]

#: The binding and the table alone, as a C++ process has them.
SERVED = """\
import ctypes, sys
import torch
package, binding, folder, source = sys.argv[1:]
serve = ctypes.CDLL(binding).comfuse_serve
serve.restype = ctypes.c_char_p
assert serve(folder.encode()) is None
x, *expected = torch.load(source)
assert all(map(torch.equal, torch._inductor.aoti_load_package(package)(x), expected))
assert "comfuse" not in sys.modules
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packaged.export(tmp_path_factory.mktemp("package"), "cuda")


def test_eight_processes_without_compilers(path: Path, tmp_path: Path) -> None:
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    assert list(packaged.runs(path, "cuda", 1, 100, 300, 5000, processes=8, **environment)) == [""] * 8


def test_the_rows_that_it_was_exported_for(tmp_path: Path) -> None:
    path = packaged.export(tmp_path, "cuda", rows=300)
    made = package.read(path)
    assert made.device == "cuda"
    assert set(made.programs.values()) == {(300,)}
    library = manifest.read(deploy.kernels_of(path))
    assert {kernel.rows for kernel in library.kernels} == {(129, 512)}
    assert list(packaged.runs(path, "cuda", 300)) == [""]


def test_a_process_without_comfuse(path: Path, tmp_path: Path) -> None:
    """The same bits as in this one, which has it."""
    x = torch.randn(300, packaged.K, device="cuda").bfloat16()
    saved = tmp_path / "expected.pt"
    torch.save([x, *deploy.load(path)(x)], saved)
    folder = deploy.kernels_of(path)
    (binding,) = folder.glob("comfuse_torch-*.so")
    command = [sys.executable, "-c", SERVED, *map(str, (path, binding, folder, saved))]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | packaged.NO_VECTORS
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_without_its_library(path: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pt2"
    alone.write_bytes(path.read_bytes())
    (found,) = packaged.runs(alone, "cuda", 100)
    assert LoadError.__name__ in found
    assert f"`comfuse build-library {alone} -o {deploy.kernels_of(alone)}` builds them" in found
