"""Where CUDA and CUTLASS are found, and what is said of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from comfuse.build import toolkit
from comfuse.errors import ToolchainError

MakeToolkit = Callable[..., Path]


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No toolkit but those that a test makes; nothing remembered of others."""
    monkeypatch.setenv("COMFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("CUDA_HOME", "CUDA_PATH", "COMFUSE_CUTLASS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolkit, "DEFAULT_CUDA", tmp_path / "no default")
    monkeypatch.setattr(toolkit, "_pip_homes", list)
    toolkit._find_cuda.cache_clear()


@pytest.fixture
def make_toolkit(tmp_path: Path) -> MakeToolkit:
    def make(name: str, version: str = "13.0.88", headers: bool = True) -> Path:
        """A folder like a toolkit's, whose nvcc answers --version and --dryrun, and counts how often it
        ran.
        """
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        (home / "include").mkdir()
        if headers:
            (home / "include" / "cuda_runtime.h").touch()
        nvcc = home / "bin" / "nvcc.real" if name == "linked" else home / "bin" / "nvcc"
        nvcc.write_text(
            "#!/bin/sh\n"
            f"echo run >> {tmp_path}/runs\n"
            f"[ \"$1\" = --version ] && echo 'Cuda compilation tools, release 13.0, V{version}'\n"
            f"[ \"$1\" = --dryrun ] && echo '#$ _HERE_={home}/bin'\n"
            "exit 0\n"
        )
        nvcc.chmod(0o755)
        return home

    return make


def put_on_path(script: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")


def test_the_environment_comes_first(make_toolkit: MakeToolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    home, other = make_toolkit("cuda"), make_toolkit("other")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("PATH", f"{other}/bin:/usr/bin:/bin")
    found = toolkit.find_cuda()
    assert (found.home, found.nvcc, found.version) == (home, home / "bin/nvcc", "13.0.88")
    assert found.source == "environment variable CUDA_HOME"


def test_a_home_without_nvcc_is_passed_over(
    make_toolkit: MakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_toolkit("cuda")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "runtime only"))
    monkeypatch.setenv("CUDA_PATH", str(home))
    assert toolkit.find_cuda().source == "environment variable CUDA_PATH"


def test_a_wrapper_script_on_the_path(
    make_toolkit: MakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_toolkit("cuda")
    put_on_path(tmp_path / "bin/nvcc", f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n', monkeypatch)
    found = toolkit.find_cuda()
    assert found.home == home
    assert found.source == "nvcc on PATH"


def test_a_wrapper_beside_unrelated_headers(
    make_toolkit: MakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/usr/bin/nvcc and /usr/include/cuda_runtime.h exist where a distribution packages CUDA."""
    home = make_toolkit("cuda")
    (tmp_path / "usr/include").mkdir(parents=True)
    (tmp_path / "usr/include/cuda_runtime.h").touch()
    put_on_path(tmp_path / "usr/bin/nvcc", f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n', monkeypatch)
    assert toolkit.find_cuda().home == home


def test_a_link_on_the_path(
    make_toolkit: MakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_toolkit("cuda")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").symlink_to(home / "bin/nvcc")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert toolkit.find_cuda().home == home


def test_torch_s_default_and_pip_packages_come_last(
    make_toolkit: MakeToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    default, pip = make_toolkit("default"), make_toolkit("pip")
    monkeypatch.setattr(toolkit, "_pip_homes", lambda: [pip])
    assert toolkit.find_cuda().source == "pip packages"
    toolkit._find_cuda.cache_clear()
    monkeypatch.setattr(toolkit, "DEFAULT_CUDA", default)
    assert toolkit.find_cuda().home == default


def test_nothing_found_says_where_it_looked(
    make_toolkit: MakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit("headless", headers=False)))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "gone"))
    with pytest.raises(ToolchainError) as caught:
        toolkit.find_cuda()
    assert caught.value.missing == "nvcc"
    text = str(caught.value)
    assert "headless has no cuda_runtime.h" in text
    assert "gone has no bin/nvcc" in text
    assert "nvcc on PATH: none" in text
    assert "pip install" in text


def test_an_nvcc_that_does_not_run(make_toolkit: MakeToolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_toolkit("cuda")
    (home / "bin/nvcc").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("CUDA_HOME", str(home))
    with pytest.raises(ToolchainError, match="nvcc does not run"):
        toolkit.find_cuda()


def test_versions_are_asked_once_and_again_when_nvcc_changes(
    make_toolkit: MakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_toolkit("cuda")
    monkeypatch.setenv("CUDA_HOME", str(home))

    def runs() -> int:
        return len((tmp_path / "runs").read_text().splitlines())

    for _ in range(3):
        toolkit.find_cuda()
        toolkit._find_cuda.cache_clear()  # another process
    assert runs() == 1
    nvcc = home / "bin/nvcc"
    nvcc.write_text(nvcc.read_text().replace("13.0.88", "13.1.0"))
    assert toolkit.find_cuda().version == "13.1.0"
    assert runs() == 2


def test_a_damaged_memory_of_versions_is_no_obstacle(
    make_toolkit: MakeToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit("cuda")))
    (tmp_path / "cache").mkdir()
    for text in ("", "{", "[]", '{"a": 1}'):
        (tmp_path / "cache/toolchain.json").write_text(text)
        toolkit._find_cuda.cache_clear()
        assert toolkit.find_cuda().version == "13.0.88"


def test_a_toolkit_without_the_static_runtime(
    make_toolkit: MakeToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_toolkit("cuda")
    monkeypatch.setenv("CUDA_HOME", str(home))
    with pytest.raises(ToolchainError, match=r"libcudart_static\.a not found"):
        _ = toolkit.find_cuda().library_dir
    (home / "lib").mkdir()
    (home / "lib/libcudart_static.a").touch()
    assert toolkit.find_cuda().library_dir == home / "lib"


class TestCutlass:
    @pytest.fixture(autouse=True)
    def forget(self) -> None:
        toolkit._find_cutlass.cache_clear()

    def test_from_the_package_without_importing_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "cutlass_library", raising=False)  # another test may have needed it
        found = toolkit.find_cutlass()
        assert (found.include / "cute" / "tensor.hpp").is_file()
        assert found.version.startswith("4.")
        assert found.source == "package nvidia-cutlass"
        assert "cutlass_library" not in sys.modules

    def test_the_environment_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        header = tmp_path / "mine/include/cutlass/version.h"
        header.parent.mkdir(parents=True)
        header.write_text("#define CUTLASS_MAJOR 9\n#define CUTLASS_MINOR 8\n#define CUTLASS_PATCH 7\n")
        monkeypatch.setenv("COMFUSE_CUTLASS_DIR", str(tmp_path / "mine"))
        found = toolkit.find_cutlass()
        assert (found.include, found.version, found.source) == (
            tmp_path / "mine/include",
            "9.8.7",
            "COMFUSE_CUTLASS_DIR",
        )

    def test_a_header_without_a_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        header = tmp_path / "cut/include/cutlass/version.h"
        header.parent.mkdir(parents=True)
        header.write_text("#define CUTLASS_MAJOR 4\n")
        monkeypatch.setenv("COMFUSE_CUTLASS_DIR", str(tmp_path / "cut"))
        assert toolkit.find_cutlass().source == "package nvidia-cutlass"
        monkeypatch.setattr(toolkit, "_cutlass_package", lambda: None)
        toolkit._find_cutlass.cache_clear()
        with pytest.raises(ToolchainError, match=r"version\.h does not say its version"):
            toolkit.find_cutlass()

    def test_nothing_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COMFUSE_CUTLASS_DIR", str(tmp_path))
        monkeypatch.setattr(toolkit, "_cutlass_package", lambda: None)
        with pytest.raises(ToolchainError, match="has no include/cutlass") as caught:
            toolkit.find_cutlass()
        assert "package nvidia-cutlass: not installed" in str(caught.value)


def test_no_cxx_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match="a C\\+\\+ compiler not found"):
        toolkit.find_cxx()


def test_a_cxx_compiler_that_speaks_another_encoding(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nprintf 'g\\374t 13\\n'\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert toolkit.find_cxx() == (compiler, "g\ufffdt 13")
