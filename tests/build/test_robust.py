"""What builds survive: many processes at once, a killed builder, a bad disk, an upgrade; with a compiler that
is none."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from comfuse.build import binding, build, cache, find_built, headers
from comfuse.errors import BuildError, CacheError, ToolchainError
from tests.build.conftest import Source
from tests.processes import ROOT, python_path

MODULE = sys.modules["comfuse.build"]  # comfuse.build itself is the function of that name
TOOLS = SimpleNamespace(version="1.0"), SimpleNamespace(version="2.0")
SOURCE = Source("cf_fake", "// a kernel\n")

#: A process whose compiler takes a while, writes a megabyte, and leaves a line for each time that it ran.
FAKE = """\
import os, resource, signal, sys, time
from types import SimpleNamespace as N
import comfuse.build
from comfuse.build import cache
module = sys.modules["comfuse.build"]
module.toolchain = lambda: (N(version="1.0"), N(version="2.0"))
def compile_cuda(name, text, folder, toolkit, cutlass, tick):
    with open(os.environ["RUNS"], "a") as runs:
        runs.write("run\\n")
    for _ in range(10):
        tick()
        time.sleep(0.05)
    (folder / "build.log").write_text("")
    library = folder / f"{name}.so"
    library.write_bytes(bytes(1 << 20))
    return library
module.compile_cuda = compile_cuda
from tests.build.conftest import Source
def build():
    return module.build(Source("cf_fake", "// a kernel\\n"))
"""
BUILD = "print(build().info['created'])\n"


def start(program: str, runs: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FAKE + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "RUNS": str(runs), "PYTHONPATH": python_path()},
    )


def run(program: str, runs: Path) -> tuple[int, str, str]:
    process = start(program, runs)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture
def compiled(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that this process's compiler was asked for; it writes what it is asked for at once."""
    names: list[str] = []

    def compile_cuda(
        name: str, text: Path, folder: Path, toolkit: object, cutlass: object, tick: Callable[[], None]
    ) -> Path:
        names.append(name)
        (folder / "build.log").write_text("")
        (folder / f"{name}.so").write_bytes(b"library")
        return folder / f"{name}.so"

    monkeypatch.setattr(MODULE, "toolchain", lambda: TOOLS)
    monkeypatch.setattr(MODULE, "compile_cuda", compile_cuda)
    return names


@pytest.mark.slow
def test_eight_processes_build_once(cache_dir: Path, tmp_path: Path) -> None:
    processes = [start(BUILD, tmp_path / "runs") for _ in range(8)]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, outputs
    assert len({out for out, _ in outputs}) == 1
    assert (tmp_path / "runs").read_text() == "run\n"
    assert not any((cache_dir / "building").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("module.compile_cuda = lambda *a: die()", id="compiling"),
        pytest.param("cache.hash_file = lambda p: die()", id="compiled"),
        pytest.param("cache._sync = lambda p: die()", id="written"),
        pytest.param("os.replace = lambda a, b: die()", id="before the rename"),
        pytest.param(
            "r = os.replace\ndef f(a, b):\n    r(a, b)\n    die()\nos.replace = f", id="after the rename"
        ),
    ],
)
def test_killed_at_any_point(moment: str, cache_dir: Path, tmp_path: Path, compiled: list[str]) -> None:
    die = "def die():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    code, _, err = run(f"{die}{moment}\nbuild()\n", tmp_path / "runs")
    assert code == -signal.SIGKILL, err
    found = find_built(SOURCE)
    if "after" in os.environ["PYTEST_CURRENT_TEST"]:
        assert found is not None  # it was complete
    else:
        assert found is None
    built = build(SOURCE)
    assert compiled == ([] if found else ["cf_fake"])
    assert find_built(SOURCE) == built
    assert cache.hash_file(built.path) == built.digest
    with cache.locked(cache.entry_path(built.path.parent.name).name, lambda: None):
        pass  # its lock is free
    assert not (cache_dir / "quarantine").exists()
    if not found:
        assert not any((cache_dir / "building").iterdir())


#: Gives up root's right to write anywhere.
OBEY = """\
import ctypes
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0
"""


@pytest.mark.slow
def test_a_read_only_cache_serves_what_it_has(cache_dir: Path, tmp_path: Path, compiled: list[str]) -> None:
    build(SOURCE)
    for path in (cache_dir, *cache_dir.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        code, out, err = run(OBEY + BUILD, tmp_path / "runs")
        assert code == 0, err
        assert out
        code, _, err = run(OBEY + "module.build(Source('cf_other', ''))\n", tmp_path / "runs")
        assert code == 1
        assert "CacheError: cannot lock" in err
        assert "set COMFUSE_CACHE_DIR to a folder that is writable" in err
    finally:
        for path in (cache_dir, *cache_dir.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_full_cache(cache_dir: Path, tmp_path: Path, compiled: list[str]) -> None:
    """Files that may not grow stand for a disk that is full."""
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))\n"
    code, _, err = run(limit + BUILD, tmp_path / "runs")
    assert code == 1
    assert "CacheError: cf_fake cannot be built in" in err
    assert "make room, or set COMFUSE_CACHE_DIR to another folder" in err
    assert find_built(SOURCE) is None
    assert not any((cache_dir / "building").iterdir())
    build(SOURCE)
    assert compiled == ["cf_fake"]


def test_a_full_cache_when_the_binding_is_built(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_cxx(name: str, sources: list[Path], folder: Path, tick: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(binding, "find_binding", lambda: None)
    monkeypatch.setattr(binding, "compile_cxx", compile_cxx)
    with pytest.raises(CacheError, match=r"the torch binding cannot be built in .*No space left on device"):
        binding.build_binding()


def test_a_dump_folder_that_cannot_be_written(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMFUSE_DUMP_DIR", str(tmp_path / "file" / "dump"))
    with pytest.raises(CacheError, match=r"cannot write below .*dump: .*; set COMFUSE_DUMP_DIR to another"):
        build(SOURCE)
    assert not compiled


def test_a_cache_that_fills_while_publishing(
    cache_dir: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache.shutil, "copy2", full)
        with pytest.raises(CacheError, match=r"cannot publish .*No space left on device; make room, or set"):
            build(SOURCE)
    assert find_built(SOURCE) is None
    assert not any((cache_dir / "building").iterdir())
    assert build(SOURCE).path.read_bytes() == b"library"


@pytest.mark.parametrize(
    "failure, said",
    [
        (OSError(errno.ENOLCK, "No locks available"), "No locks available"),
        (NotImplementedError("flock"), "its file system has no locks"),
    ],
)
def test_a_file_system_without_locks(
    failure: Exception, said: str, cache_dir: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire(lock: object, timeout: float) -> None:
        raise failure

    monkeypatch.setattr(cache.filelock.FileLock, "acquire", acquire)
    with pytest.raises(CacheError, match=rf"cannot lock .*{said}; set COMFUSE_CACHE_DIR"):
        build(SOURCE)
    assert not compiled


def test_an_upgrade_makes_entries_stale(
    cache_dir: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other device headers or another compiler: what was built before is neither used nor in the way."""
    old = build(SOURCE)
    monkeypatch.setattr(headers, "digest", lambda text: "of a later release")
    assert find_built(SOURCE) is None
    new = build(SOURCE)
    assert new.path != old.path
    monkeypatch.setattr(MODULE, "toolchain", lambda: (SimpleNamespace(version="1.1"), TOOLS[1]))
    newest = build(SOURCE)
    assert len({old.path, new.path, newest.path}) == 3
    assert compiled == ["cf_fake"] * 3
    assert old.path.is_file()


def test_without_a_compiler_what_is_stale_does_not_serve(
    cache_dir: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing() -> None:
        raise ToolchainError("nvcc", (), "install it")

    built = build(SOURCE)
    monkeypatch.setattr(MODULE, "toolchain", nothing)
    assert build(SOURCE) == built
    monkeypatch.setattr(headers, "digest", lambda text: "of a later release")
    with pytest.raises(ToolchainError, match="nvcc not found; install it"):
        build(SOURCE)


def test_a_compiler_that_hangs_is_ended(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comfuse.build import compile as compiling

    hangs = tmp_path / "worker.py"
    hangs.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compile.py"))
    monkeypatch.setenv("COMFUSE_BUILD_TIMEOUT", "0.5")
    began = time.monotonic()
    with pytest.raises(BuildError, match=r"did not end within 0\.5 s \(COMFUSE_BUILD_TIMEOUT\)"):
        compiling.compile_cxx("cf_slow", [tmp_path / "slow.cpp"], tmp_path, lambda: None)
    assert time.monotonic() - began < 30


def test_a_disk_that_fills_while_compiling_is_not_the_kernels_fault(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comfuse.build import compile as compiling

    line = "/usr/bin/ld: final link failed: No space left on device"
    (tmp_path / "worker.py").write_text(f"import sys\nprint({line!r})\nsys.exit(1)\n")
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compile.py"))
    monkeypatch.setattr(binding, "find_binding", lambda: None)
    with pytest.raises(CacheError, match=r"cannot be built in .*ld: final link failed.*; make room"):
        binding.build_binding()
