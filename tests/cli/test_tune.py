"""``comfuse tune``, as a user types it, on a GPU that is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from comfuse import tune as package
from comfuse.cli import main
from comfuse.library.tuned.table import read
from tests.tune.fake import FakeGpu

PROGRAM = str(Path(__file__).with_name("program.py"))
SHAPES = "x=bf16[256,64] w=bf16[128,64]"
CATALOGUE = """
[[kernel]]
program = "linear"
shapes = [[256, 64], [256, 128]]
rows = [128]
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tune", *arguments])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(package, "GpuRunner", lambda say: fake)
    return fake


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    result = invoke(f"{PROGRAM}:fused", "--shapes", SHAPES, "-o", str(tmp_path / "t.json"))
    assert result.exit_code == 1
    assert "there is no CUDA device" in result.output
    assert "allowed: a Hopper GPU" in result.output
    assert not (tmp_path / "t.json").exists()


def test_a_dry_run_needs_none(tmp_path: Path) -> None:
    result = invoke(f"{PROGRAM}:fused", "--shapes", SHAPES, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("fused 128x64 bf16, M = 256, h200\n  pingpong-")
    assert "not timed, predicted" in result.output
    all_of_them = invoke(f"{PROGRAM}:fused", "--shapes", SHAPES, "--dry-run", "--exhaustive").output
    assert "not timed" not in all_of_them


def test_a_function_is_tuned_and_explained(tmp_path: Path, gpu: FakeGpu, monkeypatch) -> None:
    table = tmp_path / "t.json"
    result = invoke(f"{PROGRAM}:fused", "--shapes", SHAPES, "-o", str(table))
    assert result.exit_code == 0, result.output
    (entry,) = read(table).entries
    assert (entry.m, entry.rows, entry.label) == (256, 512, "fused 128x64 bf16")
    assert f"{entry.best.label} " in result.output
    assert f"1 tuned on a fake; 0 with failures; {table}" in result.output
    monkeypatch.setenv("COMFUSE_TUNED", str(table))
    said = CliRunner().invoke(main, ["explain", f"{PROGRAM}:fused", "--shapes", SHAPES]).output
    assert "chosen by measurement" in said
    assert str(table) in said


def test_a_model_is_tuned_kernel_by_kernel(tmp_path: Path, gpu: FakeGpu) -> None:
    table = tmp_path / "t.json"
    result = invoke(f"{PROGRAM}:MODEL", "--shapes", "input=bf16[16384,1024]", "-o", str(table), "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("forward 0 1024x1024 bf16, M = 16384")
    assert not table.exists()


def test_a_catalogue_is_tuned_and_wrong_kernels_are_told(tmp_path: Path, gpu: FakeGpu) -> None:
    (tmp_path / "c.toml").write_text(CATALOGUE)
    result = invoke(str(tmp_path / "c.toml"), "-o", str(tmp_path / "t.json"))
    assert result.exit_code == 0, result.output
    entries = read(tmp_path / "t.json").entries
    assert [(e.rows, e.m) for e in entries] == [(128, 128), (128, 128)]
    assert len(gpu.built) > len(set(gpu.built))  # all together first
    gpu.spoil = {entries[0].best.label: lambda y: y.zero_()}
    result = invoke(str(tmp_path / "c.toml"), "-o", str(tmp_path / "t.json"))
    assert result.exit_code == 1
    assert f"{entries[0].best.label}: WRONG: output y" in result.output
    assert all(e.best.label != entries[0].best.label for e in read(tmp_path / "t.json").entries)


def test_chains_of_a_catalogue_are_left_out(tmp_path: Path, gpu: FakeGpu) -> None:
    (tmp_path / "c.toml").write_text(
        CATALOGUE
        + """
[[kernel]]
program = "mlp"
shapes = [[128, 64, 256]]
rows = ["many"]
"""
    )
    result = invoke(str(tmp_path / "c.toml"), "-o", str(tmp_path / "t.json"))
    assert result.exit_code == 0, result.output
    assert "left out: mlp" in result.output
    assert len(read(tmp_path / "t.json").entries) == 2


def test_a_spec_is_tuned_at_the_rows_that_are_given(tmp_path: Path, gpu: FakeGpu) -> None:
    from comfuse.generator import catalog
    from comfuse.generator.spec import DType

    (tmp_path / "spec.json").write_text(catalog.linear(256, 64, DType.BF16).text())
    options = ("--rows", "40", "--rows", "600", "-o", str(tmp_path / "t.json"))
    result = invoke(str(tmp_path / "spec.json"), *options)
    assert result.exit_code == 0, result.output
    assert [(e.m, e.rows) for e in read(tmp_path / "t.json").entries] == [(40, 128), (600, 2048)]


def test_what_cannot_be_tuned_is_told_and_the_rest_goes_on(tmp_path: Path, gpu: FakeGpu) -> None:
    (tmp_path / "c.toml").write_text(CATALOGUE.replace("[256, 64]", "[256, 63]"))
    result = invoke(str(tmp_path / "c.toml"), "-o", str(tmp_path / "t.json"))
    assert result.exit_code == 1
    assert "not tuned: K = 63 must be a multiple of 8" in result.output
    assert len(read(tmp_path / "t.json").entries) == 1


def test_a_dry_run_goes_on_too(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CATALOGUE.replace("[256, 64]", "[256, 63]"))
    result = invoke(str(tmp_path / "c.toml"), "--dry-run")
    assert result.exit_code == 1
    assert "256x63 bf16, M = 128, h200\n  not tuned: K = 63 must be a multiple of 8" in result.output
    assert "256x128 bf16, M = 128, h200\n  pingpong" in result.output


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("nowhere.json",), "neither the text of a program nor a file"),
        (("nowhere.toml",), "is no file that can be read"),
        (('{"version":0}',), "spec: "),
        ((f"{PROGRAM}:fused", "--shapes", SHAPES, "--rows", "5"), "--rows is for specs and catalogues"),
        ((f"{PROGRAM}:two_products", "--shapes", f"{SHAPES} w2=bf16[64,128]"), "mm_1"),
    ],
)
def test_what_is_no_target_is_an_error(arguments: tuple[str, ...], said: str, gpu: FakeGpu, tmp_path) -> None:
    result = invoke(*arguments, "-o", str(tmp_path / "t.json"))
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_damaged_table_is_told_before_anything_is_compiled(tmp_path: Path, gpu: FakeGpu) -> None:
    (tmp_path / "t.json").write_text("{")
    result = invoke(f"{PROGRAM}:fused", "--shapes", SHAPES, "-o", str(tmp_path / "t.json"))
    assert result.exit_code == 1
    assert f"tuning table {tmp_path / 't.json'} cannot be read" in result.output
    assert not gpu.built


def test_doctor_says_that_a_table_is_not_there(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comfuse.cli.doctor import findings

    monkeypatch.setenv("COMFUSE_TUNED", str(tmp_path / "none.json"))
    (found,) = [f for f in findings() if f.what == "tuning" and "none.json" in f.found]
    assert found.ok is False
    assert found.found.endswith("COMFUSE_TUNED has to name tables")


def test_doctor_shows_the_tables(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from comfuse.library.tuned import lookup
    from comfuse.library.tuned.table import update

    table = tmp_path / "t.json"
    update(table, ())
    monkeypatch.setenv("COMFUSE_TUNED", str(table))
    said = CliRunner().invoke(main, ["doctor"]).output
    assert f"{table}: 0 choices" in said
    assert f"{lookup.SHIPPED / 'h200.json'}: " in said
    table.write_text("{")
    said = CliRunner().invoke(main, ["doctor"]).output
    (line,) = [line for line in said.splitlines() if f"tuning table {table} cannot be read" in line]
    assert line.split()[:2] == ["--", "tuning"]
