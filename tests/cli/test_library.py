"""`comfuse build-library` and `comfuse library`, as a user types them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from comfuse.cli import main
from comfuse.errors import BuildError
from comfuse.generator import catalog
from comfuse.generator.spec import DType, FusedSpec
from comfuse.library import builder, catalogue
from tests.library.stubs import Compilers, compilers, folder, small

__all__ = ["compilers", "folder"]

PROGRAM = str(Path(__file__).with_name("program.py"))
TOML = """
[[kernel]]
program = "linear"
shapes = [[128, 64]]
bias = "same"
rows = [128, "many"]
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    return path


def test_build_and_list(toml: Path, compilers: Compilers, tmp_path: Path) -> None:
    output = tmp_path / "library"
    result = invoke("build-library", str(toml), "-o", str(output), "-j", "2")
    assert result.exit_code == 0, result.output
    assert "mine: 2 kernels for 2 classes of rows of 1 programs" in result.output
    result = invoke("library", "list", "--kernels")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{output}\n  mine: 2 kernels")
    assert "nvcc 1, CUTLASS 2, ABI version" in result.output
    assert "linear 128x64 bf16 bias=same, h200, rows 1 to 128: cf_sm90_gemm_bf16" in result.output


def test_list_where_a_manifest_lacks_something(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"nvcc"', '"gcc"'))
    result = invoke("library", "list")
    assert result.exit_code == 1
    assert "cannot be read: it has no 'nvcc'" in result.output
    assert isinstance(result.exception, SystemExit)


def test_what_is_refused_is_said(toml: Path, compilers: Compilers, tmp_path: Path) -> None:
    toml.write_text(TOML.replace("[128, 64]", "[128, 64], [128, 63]"))
    result = invoke("build-library", str(toml), "-o", str(tmp_path / "library"))
    assert result.exit_code == 1
    assert "refused: linear 128x63 bf16 bias=same, rows 1 to 128: K = 63 must be a multiple" in result.output


def test_a_catalogue_that_does_not_exist(compilers: Compilers, tmp_path: Path) -> None:
    result = invoke("build-library", "nothing", "-o", str(tmp_path / "library"))
    assert result.exit_code == 1
    assert "catalogue nothing: is no file that can be read" in result.output
    assert "postnorm" in result.output


@pytest.mark.parametrize("command", ["list", "verify"])
def test_no_library(command: str, compilers: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMFUSE_LIBRARY")
    result = invoke("library", command)
    assert result.exit_code == 1
    assert "there is no kernel library; looked in " in result.output


@pytest.mark.parametrize("command", ["list", "verify"])
def test_a_folder_that_is_named_and_is_no_library(command: str, compilers: Compilers, tmp_path: Path) -> None:
    result = invoke("library", command)
    assert result.exit_code == 1
    assert str(tmp_path / "library") in result.output
    assert "it is no kernel library: there is no manifest.json in it" in result.output


def test_the_doctor_marks_a_folder_that_is_named_and_is_no_library(
    compilers: Compilers, tmp_path: Path
) -> None:
    from comfuse.cli.doctor import findings

    found = findings()
    (library,) = [f for f in found if f.what == "library"]
    assert library.ok is False
    assert f"{tmp_path / 'library'}: not used: COMFUSE_LIBRARY names it, but" in library.found
    (variable,) = [f for f in found if f.what == "COMFUSE_LIBRARY"]
    assert variable.found == str(tmp_path / "library")


@pytest.mark.parametrize(
    "target, options, rows",
    [
        ("MODEL", ["--training", "--shapes", "input=bf16[16384,1024]"], None),
        ("layer_norm", ["--shapes", "x=bf16[300,256] w=bf16[256,256] bias=bf16[256]"], 512),
    ],
)
def test_a_catalogue_of_what_is_fused(
    target: str, options: list[str], rows: int | None, compilers: Compilers, tmp_path: Path
) -> None:
    """Of a function, and of a model in training: what is asked for when it runs is in the library then."""
    path = tmp_path / "mine.toml"
    result = invoke("explain", f"{PROGRAM}:{target}", *options, "--catalogue", str(path))
    assert result.exit_code == 0, result.output
    (entry,) = catalogue.read(str(path)).entries
    assert entry.rows == (rows,)
    result = invoke("build-library", str(path), "-o", str(tmp_path / "library"))
    assert "mine: 1 kernels for 1 classes of rows of 1 programs" in result.output
    outputs = {"MODEL": 4, "layer_norm": 1}  # the result, and what its backward reads
    assert isinstance(entry.spec, FusedSpec)
    assert len(entry.spec.outputs) == outputs[target]


def test_verify(folder: Path) -> None:
    result = invoke("library", "verify")
    assert (result.exit_code, result.output) == (0, f"{folder}: ok\n")
    (file,) = folder.glob("cf_*.so")
    file.write_bytes(b"damaged")
    result = invoke("library", "verify", str(folder))
    assert result.exit_code == 1
    assert f"{folder}: {file.name} is damaged: it does not match its digest\n" in result.output
    file.unlink()
    assert "it cannot be read" in invoke("library", "verify").output
    assert invoke("library", "verify", str(folder.parent)).exit_code == 1


def test_why_not(folder: Path, tmp_path: Path) -> None:
    spec = catalog.linear(128, 64, DType.BF16, bias=DType.BF16).text()
    result = invoke("library", "why-not", spec)
    assert result.exit_code == 0, result.output
    assert result.output.count(f"{folder}: has it") == 4
    file = tmp_path / "spec.json"
    file.write_text(small().entries[1].spec.text() + "\n")
    result = invoke("library", "why-not", str(file), "--rows", "100")
    assert result.exit_code == 1
    assert "rows 1 to 128\n" in result.output
    assert "its kernels serve 2049 to 2147483647 rows, not 1 to 128" in result.output
    assert invoke("library", "why-not", str(file), "--rows", "5000").exit_code == 0
    shapes = "x=bf16[256,64] w=bf16[128,64] bias=fp32[128]"
    result = invoke("library", "why-not", f"{PROGRAM}:layer_norm", "--shapes", shapes)
    assert result.exit_code == 1
    assert "it has not this program" in result.output


def test_why_not_of_a_catalogue(folder: Path, toml: Path) -> None:
    result = invoke("library", "why-not", str(toml))
    assert result.exit_code == 0, result.output
    assert result.output.count(f"{folder}: has it") == 2
    toml.write_text(TOML + 'program = "colsum"\n'.join(TOML.split('program = "linear"\n')))
    result = invoke("library", "why-not", str(toml))
    assert result.exit_code == 1
    assert result.output.count("it has not this program") == 2
    assert invoke("library", "why-not", str(toml), "--gpu", "a100").exit_code == 1


def test_why_not_of_what_is_no_program(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    result = invoke("library", "why-not", str(file))
    assert result.exit_code == 1
    assert result.output.startswith("Error: spec: not the text of a program, which is JSON: ")


def test_why_not_for_a_gpu_that_nobody_knows(folder: Path) -> None:
    result = invoke("library", "why-not", small().entries[0].spec.text(), "--gpu", "a100")
    assert result.exit_code == 1
    assert result.output == "Error: unknown GPU 'a100', known: h200, h100\n"


def test_the_doctor_shows_libraries(folder: Path) -> None:
    from comfuse.cli.doctor import findings
    from comfuse.library import manifest

    (found,) = [f for f in findings() if f.what == "library"]
    assert (found.ok, found.found) == (True, f"{folder}: 3 kernels")
    path = folder / manifest.NAME
    path.write_text(path.read_text().replace(manifest.device_code(), "of another release"))
    (found,) = [f for f in findings() if f.what == "library"]
    assert found.ok is False
    assert "not used: it was built from other device code (of another release" in found.found


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda file: file.write_bytes(b"damaged"), "it has 7 bytes, of "),
        (lambda file: file.unlink(), "it cannot be read: "),
    ],
    ids=["changed", "gone"],
)
def test_damaged_files_are_shown(damage: Callable[[Path], object], said: str, folder: Path) -> None:
    from comfuse.cli.doctor import findings

    assert "  damaged: " not in invoke("library", "list").output
    (file,) = folder.glob("cf_*.so")
    damage(file)
    (found,) = [f for f in findings() if f.what == "library"]
    assert (found.ok, found.found) == (False, f"{folder}: 3 kernels, 1 of 1 files damaged")
    (one,) = [f for f in findings() if f.what == "  damaged"]
    assert one.ok is False
    assert one.found.startswith(f"{file.name}: {said}")
    assert f"  damaged: {file.name}: {said}" in invoke("library", "list").output


def test_why_not_without_a_library(compilers: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMFUSE_LIBRARY")
    result = invoke("library", "why-not", small().entries[0].spec.text(), "--rows", "1")
    assert result.exit_code == 1
    assert "no library: none is found" in result.output


def test_a_kernel_that_does_not_compile(toml: Path, compilers: Compilers, tmp_path: Path) -> None:
    from comfuse.library import catalogue

    name = builder.sources([catalogue.read(str(toml))])[0].name
    compilers.errors[name] = BuildError(name, Path("k.cu"), Path("k.log"), "error: no")
    result = invoke("build-library", str(toml), "-o", str(tmp_path / "library"))
    assert result.exit_code == 1
    assert "error: no" in result.output
    assert "mine: 1 kernels" in result.output
