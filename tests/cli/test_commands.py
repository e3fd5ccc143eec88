"""The commands, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner, Result

from comfuse.cli import main

PROGRAM = str(Path(__file__).with_name("program.py"))
SHAPES = "x=bf16[256,64] w=bf16[128,64]"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_help_lists_the_commands():
    text = invoke("--help").output
    assert all(command in text for command in ("demo", "doctor", "emit", "explain"))
    assert invoke("-h").exit_code == 0


def test_version():
    import comfuse

    assert comfuse.__version__ in invoke("--version").output


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "comfuse", "--help"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("Usage: comfuse ")


def test_explain_shows_the_gemms_of_a_model():
    result = invoke("explain", f"{PROGRAM}:MODEL", "--shapes", "input=bf16[16384,1024]")
    assert result.exit_code == 0, result.output
    title, _, _, row, *_ = result.output.splitlines()
    assert title == "Sequential: 1 GEMM, 1 fused"
    assert "16384, 1024, 1024" in row
    assert row.endswith("fused")
    trained = invoke("explain", f"{PROGRAM}:MODEL", "--shapes", "input=bf16[16384,1024]", "--training")
    assert "backward" in trained.output


def test_explain_says_what_and_why():
    result = invoke("explain", f"{PROGRAM}:layer_norm", "--shapes", f"{SHAPES} bias=fp32[128]")
    assert result.exit_code == 0, result.output
    for expected in (
        "layer_norm(x, w, bias)",
        "M = 256, N = 128, K = 64, bf16",
        "h = a @ b.T + bias",
        "bias: (N,) fp32",
        "phases",
        "reduces h by row_welford",
        "registers",
        "bytes of 232448",
        "floor",
        "other tile shapes",
    ):
        assert expected in result.output


def test_explain_a_refusal():
    result = invoke("explain", f"{PROGRAM}:two_products", "--shapes", f"{SHAPES} w2=bf16[64,128]")
    assert result.exit_code == 1
    assert "not fused: mm_1" in result.output
    assert f"{PROGRAM}:" in result.output
    result = invoke("explain", f"{PROGRAM}:layer_norm", "--shapes", "x=bf16[9,9] w=bf16[9,9] bias=bf16[9]")
    assert result.exit_code == 1
    assert "not fused: " in result.output
    assert "multiple of 8" in result.output


def test_explain_a_fused_function_by_module():
    result = invoke("explain", "tests.cli.program:fused", "--shapes", SHAPES, "--gpu", "h100")
    assert result.exit_code == 0, result.output
    assert "kernel for h100" in result.output


def test_emit_prints_the_kernel():
    result = invoke("emit", f"{PROGRAM}:fused", "--shapes", SHAPES)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("// cf_sm90_")
    assert "COMFUSE_EXPORT(" in result.output


@pytest.mark.parametrize("is_folder", [True, False])
def test_emit_writes_a_file(tmp_path, is_folder):
    target = tmp_path if is_folder else tmp_path / "kernel.cu"
    result = invoke("emit", f"{PROGRAM}:fused", "--shapes", SHAPES, "-o", str(target))
    assert result.exit_code == 0, result.output
    written = Path(result.output.strip())
    name = written.read_text().split("\n")[0].removeprefix("// ")
    assert written == (tmp_path / f"{name}.cu" if is_folder else target)


def test_emit_makes_a_folder_that_is_named_as_one(tmp_path):
    result = invoke("emit", f"{PROGRAM}:fused", "--shapes", SHAPES, "-o", f"{tmp_path}/new/kernels/")
    assert result.exit_code == 0, result.output
    (written,) = (tmp_path / "new/kernels").iterdir()
    assert result.output == f"{written}\n"


@pytest.mark.parametrize("command, option", [("emit", "-o"), ("explain", "--catalogue")])
def test_a_file_that_cannot_be_written_is_a_message(tmp_path, command, option):
    target = tmp_path / "no" / "file"
    result = invoke(command, f"{PROGRAM}:fused", "--shapes", SHAPES, option, str(target))
    assert result.exit_code == 1
    assert f"Could not open file '{target}': No such file or directory" in result.output


def test_emit_a_refusal_is_a_message():
    result = invoke("emit", f"{PROGRAM}:two_products", "--shapes", f"{SHAPES} w2=bf16[64,128]")
    assert result.exit_code == 1
    assert result.output.startswith("Error: mm_1")


@pytest.mark.parametrize(
    "target, shapes, message",
    [
        ("nowhere.py:f", SHAPES, "there is no file nowhere.py"),
        ("no.such.module:f", SHAPES, "there is no module no"),
        (PROGRAM, SHAPES, "write FILE.py:FUNCTION"),
        (f"{PROGRAM}:missing", SHAPES, "has no function missing; it has layer_norm, fused, two_products"),
        (f"{PROGRAM}:VERSION", SHAPES, "has no function VERSION"),
        (f"{PROGRAM}:fused", "x=bf16[256,64]", "missing a required argument: 'w'"),
        (
            f"{PROGRAM}:fused",
            f"{SHAPES} z=1",
            "unexpected keyword argument 'z'; the function's arguments are x, w",
        ),
        (f"{PROGRAM}:fused", "x w", "'x' is not NAME=VALUE"),
        (f"{PROGRAM}:fused", "x=int4[2] w=1", "x: unknown dtype 'int4'; allowed: bf16, fp16, fp32"),
        (f"{PROGRAM}:fused", "x=bf16[2 w=1", "x: 'bf16[2' is no tensor like bf16"),
        (f"{PROGRAM}:fused", "x=1.5 w=none", "no matrix product|the function raised"),
        (f"{PROGRAM}:fused", "x=bf16[2,,2] w=1", "x: 'bf16[2,,2]' is no tensor like bf16"),
        (f"{PROGRAM}:fused", "x='bf16[2,2] w=1", "No closing quotation"),
        (f"{PROGRAM}:fused", "x=bf16[99999999999999999999,8] w=1", "x: bf16[99999999999999999999,8]: "),
        (f"{PROGRAM}:fused", f"{SHAPES} x=bf16[8,64]", "x is given twice"),
        (f"{PROGRAM}:by_name", SHAPES, "by_name takes w by its name alone"),
    ],
)
def test_bad_input(target, shapes, message):
    result = invoke("explain", target, "--shapes", shapes)
    assert result.exit_code != 0
    assert any(part in result.output for part in message.split("|")), result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "text, said",
    [
        ("def f(x:\n", ["SyntaxError: "]),
        ("def g():\n    return missing\ng()\n", ["line 3, in <module>", "line 2, in g", "NameError: "]),
        ("import no_such_module\n", ["line 1, in <module>", "ModuleNotFoundError: "]),
    ],
)
@pytest.mark.parametrize("command", [["explain"], ["emit"], ["tune", "--dry-run"]])
def test_a_file_that_cannot_be_loaded(tmp_path, command, text, said):
    file = tmp_path / "broken.py"
    file.write_text(text)
    result = invoke(*command, f"{file}:f", "--shapes", "x=bf16[8,8]")
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.output.startswith(f"Error: {file} cannot be loaded:\n")
    assert str(file) in result.output.split("\n", 1)[1]
    assert all(part in result.output for part in said)
    assert len(result.output.splitlines()) < 12


def test_a_module_that_cannot_be_loaded(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    result = invoke("explain", "broken_module:f", "--shapes", "x=bf16[8,8]")
    assert result.output.startswith("Error: broken_module cannot be loaded:\n")
    assert "ZeroDivisionError" in result.output
    assert "importlib" not in result.output


def test_a_file_with_dataclasses(tmp_path):
    """Those look for their module, where annotations are strings."""
    from comfuse.cli.target import load_function

    file = tmp_path / "model.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Config:\n    n: int = 8\ndef f(x): return x * Config().n\n"
    )
    assert load_function(f"{file}:f")(2) == 16


def test_values_of_other_kinds():
    from comfuse.cli.target import load_function, parse_shapes

    function = load_function(f"{PROGRAM}:layer_norm")
    x, w, bias, eps = parse_shapes(
        function, "x=fp16[2, 3,8]".replace(" ", "") + " w=bf16[4,8] bias=none eps=1e-3"
    )
    assert (tuple(x.shape), x.dtype, x.device.type) == ((2, 3, 8), torch.float16, "meta")
    assert (tuple(w.shape), bias, eps) == ((4, 8), None, 1e-3)


def test_doctor_says_what_works(cache_dir):
    result = invoke("doctor")
    for name in (
        "GPU",
        "torch",
        "nvcc",
        "CUTLASS",
        "C++",
        "cache",
        "what works",
        "compile kernels",
        "run kernels",
    ):
        assert name in result.output
    assert str(cache_dir) in result.output
    works = "--" not in result.output.split("what works")[1]
    assert result.exit_code == (0 if works else 1)


def test_doctor_without_a_toolchain(cache_dir, monkeypatch, tmp_path):
    from comfuse.build import toolkit

    monkeypatch.setattr(toolkit, "_cuda_candidates", lambda: iter([("a place", tmp_path)]))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("COMFUSE_MAX_JOBS", "many")
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "nvcc not found" in result.output
    assert "pip install" in result.output
    assert "compile kernels             no: nvcc" in result.output
    assert "COMFUSE_MAX_JOBS" in result.output


def test_doctor_while_files_come_and_go(cache_dir, monkeypatch):
    """As they do where a build is under way."""
    (cache_dir / "building").mkdir(parents=True)
    (cache_dir / "building" / "gone").symlink_to(cache_dir / "nothing")
    from comfuse.cli import doctor

    monkeypatch.setattr(Path, "is_file", lambda path: True)
    (found,) = doctor._cache()
    assert found.found.startswith(f"{cache_dir}: 0 libraries")


def test_doctor_says_what_is_wrong_with_a_setting(cache_dir, monkeypatch):
    monkeypatch.setenv("COMFUSE_JIT", "maybe")
    output = invoke("doctor").output
    assert "--  JIT " in output
    assert "compile kernels             no: " in output


@pytest.mark.parametrize("others", [[8], [8, 9], [9, 8]])
def test_doctor_judges_several_gpus_by_the_best(cache_dir, monkeypatch, others):
    from comfuse.cli.doctor import Finding, abilities, findings

    found = [f for f in findings() if f.what not in ("GPU", "binding")]
    found += [Finding("GPU", "a card", major == 9) for major in others]
    (runs,) = [f for f in abilities([*found, Finding("binding", "", True)]) if f.what == "run kernels"]
    assert runs.ok is (9 in others)


@pytest.mark.parametrize("major, works", [(9, True), (8, False)])
def test_doctor_judges_the_gpu(cache_dir, monkeypatch, major, works):
    from comfuse.cli import doctor

    card = SimpleNamespace(name="Card", major=major, minor=0, total_memory=2**35, multi_processor_count=99)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: card)
    monkeypatch.setattr(doctor, "_driver", lambda: "580.1")
    output = invoke("doctor").output
    assert f"Card, compute capability {major}.0, 32 GiB, 99 SMs" in output
    assert "580.1" in output
    assert ("kernels need 9.0 (Hopper)" in output) is not works
    assert ("no: no Hopper GPU" in output) is not works


def test_import_starts_no_cuda_and_no_compiler():
    code = (
        "import sys, torch, subprocess\n"
        "subprocess.Popen = None\n"
        "import comfuse\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert torch.ops.comfuse.region\n"
        "assert 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
