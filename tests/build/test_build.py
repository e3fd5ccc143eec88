"""Real compiles: what is built, reused, refused and survived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from comfuse import library
from comfuse.build import BuildEvent, build, build_many, find_built
from comfuse.errors import BuildError, JitDisabledError, LoadError, ToolchainError
from tests.build.conftest import Source, trivial

pytestmark = pytest.mark.usefixtures("compilers")

PROGRAM = """\
import sys
from comfuse.build import build
from tests.build.conftest import trivial
built = build(trivial())
print(built.info["created"], built.path)
"""


def start() -> subprocess.Popen[str]:
    """A process that builds the trivial kernel."""
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=root)


def test_a_kernel_is_built_once_and_then_found(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[BuildEvent] = []
    built = build(trivial(), progress=events.append)
    assert {event.stage for event in events} == {"compiling", "done"}
    assert events[-1].stage == "done"
    assert built.info["ptxas"]["functions"] == 1
    assert built.info["ptxas"]["spill_bytes"] == 0
    assert (built.path.parent / "cf_trivial.cu").read_text() == trivial().text

    monkeypatch.setenv("COMFUSE_JIT", "off")
    began = time.perf_counter()
    again = build(trivial(), progress=events.append)
    assert time.perf_counter() - began < 0.1
    assert again == built
    assert events[-1].stage == "cached"

    kernel = library.load(again)
    assert kernel.workspace_bytes(100) == 800
    assert kernel.query().registers == 8
    assert library.load(again) is kernel


def test_the_library_stands_alone(cache_dir: Path) -> None:
    built = build(trivial())
    needed = subprocess.run(["ldd", built.path], capture_output=True, text=True, check=True).stdout
    assert "torch" not in needed
    assert "cudart" not in needed
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", built.path], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in exported.splitlines()} == {
        "cf_launch_cf_trivial",
        "cf_workspace_cf_trivial",
        "cf_info_cf_trivial",
    }


SERIALISED = """
__device__ void multiply(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}
__global__ void multiplies(float* p, uint64_t a, uint64_t b) {
  float d[4] = {};
  multiply(d, a, b);
  d[0] += p[0];  // while the first product may still be under way
  multiply(d, a, b);
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) p[4 * threadIdx.x + i] = d[i];
}
"""


def test_serialised_products_are_a_failed_build(cache_dir: Path) -> None:
    source = Source("cf_serialised", trivial("cf_serialised").text + SERIALISED)
    with pytest.raises(BuildError, match=r"ptxas objects:\n\(C75\d\d\)") as caught:
        build(source)
    assert caught.value.source.is_file()
    assert find_built(source) is None


def test_a_changed_text_or_flag_is_another_entry(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(trivial())
    assert find_built(trivial()) == built
    assert find_built(Source("cf_trivial", trivial().text + "\n")) is None
    monkeypatch.setenv("COMFUSE_NVCC_FLAGS", "-lineinfo")
    assert find_built(trivial()) is None


def test_without_a_compiler_what_is_built_serves(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(trivial())

    def nothing() -> None:
        raise ToolchainError("nvcc", (), "install it")

    # By sys.modules: comfuse.build is the function of that name.
    monkeypatch.setattr(sys.modules["comfuse.build"], "toolchain", nothing)
    assert build(trivial()) == built
    with pytest.raises(ToolchainError, match="nvcc not found"):
        build(trivial("cf_other"))


def test_jit_off(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_JIT", "off")
    with pytest.raises(JitDisabledError, match="cf_trivial is not in the cache and COMFUSE_JIT=off"):
        build(trivial())


def test_a_torch_without_cuda(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(ToolchainError, match=r"a CUDA build of torch not found"):
        build(trivial())


def test_a_compiler_error_names_kernel_source_and_cause(cache_dir: Path) -> None:
    events: list[BuildEvent] = []
    source = Source("cf_broken", "#include <comfuse/abi.h>\nint f() { return missing_thing; }\n")
    with pytest.raises(BuildError) as caught:
        build(source, progress=events.append)
    error = caught.value
    assert error.kernel == "cf_broken"
    assert error.source == cache_dir / "failed" / "cf_broken" / "cf_broken.cu"
    assert error.source.read_text() == source.text
    assert 'identifier "missing_thing" is undefined' in error.message
    assert "missing_thing" in error.log.read_text()
    assert all(
        part in str(error) for part in ("cf_broken does not compile", str(error.source), "missing_thing")
    )
    assert events[-1].stage == "failed"
    assert find_built(source) is None
    assert not any((cache_dir / "building").iterdir())


def test_a_missing_symbol_is_a_failed_build(cache_dir: Path) -> None:
    body, broken = "return 8 * m * batches;", "extern int64_t nowhere(); return nowhere();"
    text = trivial("cf_unlinked").text.replace(body, broken)
    with pytest.raises(BuildError, match="nowhere"):
        build(Source("cf_unlinked", text))


def test_a_damaged_library_is_built_again(cache_dir: Path) -> None:
    built = build(trivial())
    built.path.write_bytes(b"not a library")
    again = build(trivial())
    assert again.path == built.path
    assert library.load(again).workspace_bytes(1) == 8
    assert len(list((cache_dir / "quarantine").iterdir())) == 1


def test_two_processes_build_once(cache_dir: Path) -> None:
    processes = [start() for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert outputs[0] == outputs[1] != ""


def test_a_killed_build_leaves_no_harm(cache_dir: Path) -> None:
    process = start()
    deadline = time.monotonic() + 60
    while not list(cache_dir.glob("building/*/build.log")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert find_built(trivial()) is None
    built = build(trivial())
    assert library.load(built).workspace_bytes(1) == 8
    # The killed builder's compilers end themselves; give them a moment, then nothing is left.
    deadline = time.monotonic() + 10
    while list((cache_dir / "building").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list((cache_dir / "building").iterdir())


def test_many_at_once(cache_dir: Path) -> None:
    assert build_many([]) == []
    names = ["cf_one", "cf_two"]
    built = build_many([trivial(name) for name in names], jobs=2)
    assert [kernel.name for kernel in built] == names
    broken = Source("cf_broken", "nonsense")
    with pytest.raises(BuildError, match="cf_broken"):
        build_many([trivial("cf_one"), broken, trivial("cf_two")])


def test_a_library_of_another_kernel(cache_dir: Path) -> None:
    built = build(trivial())
    with pytest.raises(LoadError, match="has no function cf_launch_other"):
        library.load(type(built)("other", built.digest, built.path, built.info))
    with pytest.raises(LoadError, match="cannot be loaded"):
        library.load(type(built)("gone", built.digest, cache_dir / "gone.so", built.info))


def test_dumped_text(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_DUMP_DIR", str(tmp_path / "dump"))
    monkeypatch.setenv("COMFUSE_JIT", "off")
    with pytest.raises(JitDisabledError):
        build(trivial())
    assert (tmp_path / "dump/cf_trivial.cu").read_text() == trivial().text
