"""Kernel libraries whose kernels are C functions: built in a second, loaded without a GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from comfuse.build import binding, cache
from comfuse.build.cache import BuiltKernel
from comfuse.build.toolkit import INCLUDE_DIR, find_cxx
from comfuse.errors import ComFuseError
from comfuse.library import builder, catalogue

TOOLS = SimpleNamespace(version="1"), SimpleNamespace(version="2")
#: Sets the first column of its first output, of 16-bit elements, to 1 in bfloat16.
KERNEL = """
extern "C" int cf_launch_{name}(CfArgs const* args, void*, void*) {{
  if (args->abi_version != {abi}) return CF_ERROR_ABI;
  for (int64_t m = 0; m < args->m; ++m)
    static_cast<uint16_t*>(args->outputs[0].data)[m * args->outputs[0].stride] = 0x3f80;
  return 0;
}}
extern "C" int64_t cf_workspace_{name}(int64_t m, int64_t batches) {{ return 8 * m * batches; }}
extern "C" int cf_info_{name}(CfInfo* info) {{ return *info = {{{abi}, 8, 0, 0, 1, 32}}, 0; }}
"""

CATALOGUE = {
    "description": "For tests.",
    "kernel": [
        {"program": "linear", "shapes": [[128, 64]], "bias": "same"},
        {"program": "layernorm", "shapes": [[1024, 64]], "constants": {"eps": 1e-5}, "rows": ["many"]},
    ],
}


def small() -> catalogue.Catalogue:
    return catalogue.parse("small", CATALOGUE)


def compile_stub(folder: Path, names: Iterable[str], abi: str = "CF_ABI_VERSION") -> Path:
    """A library of stubs."""
    text = "#include <comfuse/abi.h>\n" + "".join(KERNEL.format(name=name, abi=abi) for name in names)
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "stub.cpp", folder / f"cf_pack_{cache.hash_text(text)[:12]}.so"
    source.write_text(text)
    compiler, _ = find_cxx()
    command = [str(compiler), "-shared", "-fPIC", f"-I{INCLUDE_DIR}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


class Compilers:
    """Stands for what compiles packs and the binding."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.abi = "CF_ABI_VERSION"
        self.errors: dict[str, ComFuseError] = {}

    def build_all(self, sources: list[object], **_: object) -> dict[str, BuiltKernel | ComFuseError]:
        names = sorted({source.name for source in sources})  # type: ignore[attr-defined]
        good = [name for name in names if name not in self.errors]
        path = compile_stub(self.folder, good, self.abi)
        digest = cache.hash_file(path)
        built = {name: BuiltKernel(name, digest, path, {"ptxas": {"spill_bytes": 0}}) for name in good}
        return {**built, **self.errors}

    def build_binding(self) -> Path:
        path = self.folder / "binding.so"
        path.write_bytes(b"binding")
        return path


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compilers:
    """Libraries are built of stubs; none are found but those that a test makes."""
    made = Compilers(tmp_path / "compiled")
    monkeypatch.setattr(builder.packs, "build_all", made.build_all)
    monkeypatch.setattr(builder, "toolchain", lambda: TOOLS)
    monkeypatch.setattr(binding, "build_binding", made.build_binding)
    monkeypatch.setenv("COMFUSE_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return made


@pytest.fixture
def folder(tmp_path: Path, compilers: Compilers) -> Path:
    """The folder of a library of :func:`small`, the one that COMFUSE_LIBRARY names."""
    builder.build_library([small()], tmp_path / "library")
    return tmp_path / "library"
