"""Libraries of stub kernels: built, found, loaded when asked for, and refused with a reason."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from comfuse import library as loading
from comfuse.build import binding
from comfuse.errors import BuildError, CacheError, CatalogueError, LoadError, PlanError
from comfuse.generator import catalog
from comfuse.generator.spec import DType
from comfuse.library import abi, builder, catalogue, lookup, manifest, rows
from tests.library.stubs import Compilers, small
from tests.processes import python_path

LINEAR = catalog.linear(128, 64, DType.BF16, bias=DType.BF16)
NORM = small().entries[1].spec
MANY = (2049, rows.MAX_ROWS)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    lookup._REFUSALS.clear()
    monkeypatch.setattr(lookup, "_SHELVES", {})
    yield
    lookup._REFUSALS.clear()


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / manifest.NAME
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_library_says_what_it_holds(folder: Path) -> None:
    made = manifest.read(folder)
    assert made.abi_version == abi.ABI_VERSION
    assert made.device_code == manifest.device_code()
    assert made.toolchain["nvcc"] == "1"
    assert made.catalogues == ("small",)
    assert not made.refused
    assert not made.unfit()
    served = [(kernel.label.split()[0], kernel.rows) for kernel in made.kernels]
    assert served == [
        ("linear", (1, 128)),
        ("linear", (129, 512)),
        ("linear", (513, 2048)),
        ("linear", MANY),
        ("layernorm", MANY),
    ]
    assert made.kernels[0].spec == LINEAR.text()
    assert made.kernels[0].plan["tile_m"] == 128
    assert [file.name for file in made.files] == [path.name for path in folder.glob("cf_*.so")]
    assert (folder / binding.prebuilt_path().name).read_bytes() == b"binding"
    assert not list(manifest.damage(folder, made))


def test_a_kernel_is_loaded_when_it_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda built: loaded.append(built.name) or load(built))
    assert len(lookup.shelves()) == 1
    assert loaded == []
    kernel = lookup.kernel(LINEAR, (1, 128), "h200")
    assert kernel is not None
    assert loaded == [kernel.name]
    assert kernel.path.parent == folder
    assert kernel.workspace_bytes(10) == 80
    assert kernel.query().registers == 8
    assert lookup.kernel(catalog.linear(128, 72, DType.BF16), (1, 128), "h200") is None
    assert lookup.refusals() == {}  # what is not in a library is not refused


def test_there_need_not_be_a_library(compilers: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMFUSE_LIBRARY")
    assert lookup.shelves() == []
    assert lookup.kernel(LINEAR, (1, 128), "h200") is None
    assert lookup.why_not(LINEAR, (1, 128), "h200") == []
    assert lookup.refusals() == {}


@pytest.mark.parametrize(
    "change, said",
    [
        (
            lambda data: data.update(abi_version=1),
            f"for ABI version 1, this ComFuse has {abi.ABI_VERSION}: build it again",
        ),
        (
            lambda data: data.update(device_code="old"),
            "other device code (old, by ComFuse 0.1.0; this one",
        ),
        (lambda data: data["kernels"][3].update(processors=200), "needs 200 SMs at once, this GPU has 132"),
        (
            lambda data: data["kernels"][3].update(rows=[5000, 6000]),
            "5000 to 6000 rows, not 2049 to ",
        ),
        (lambda data: data["kernels"][3].update(file="gone.so"), "gone.so is damaged: its manifest does not"),
        (lambda data: data["files"][0].update(digest="0"), "is damaged: it does not match its digest"),
        (lambda data: data["kernels"][3].update(name="cf_other"), "has no function cf_launch_cf_other"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(
    folder: Path, change: Callable[[dict[str, Any]], object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite(folder, change)
    with caplog.at_level(logging.WARNING, logger="comfuse"):
        for _ in range(3):
            assert lookup.kernel(LINEAR, MANY, "h200") is None
    refused = {key: count for key, count in lookup.refusals().items() if said in key[1]}
    assert list(refused.values()) == [3]
    ((where, _),) = refused
    assert where == str(folder)
    assert sum(said in record.getMessage() for record in caplog.records) == 1
    ((_, reason),) = lookup.why_not(LINEAR, MANY, "h200")
    assert said in reason


def test_an_abi_that_the_manifest_hides_is_found_out(compilers: Compilers, tmp_path: Path) -> None:
    compilers.abi = "7"
    builder.build_library([small()], tmp_path / "library")
    assert lookup.kernel(LINEAR, MANY, "h200") is None
    ((_, reason),) = lookup.refusals()
    assert f"built for ABI version 7, this ComFuse has {abi.ABI_VERSION}" in reason


def test_a_gpu_with_fewer_processors(folder: Path) -> None:
    """A row of the norm takes 8 tiles, which wait for each other; a linear layer's wait for none."""
    (kernel,) = [k for k in manifest.read(folder).kernels if k.label.startswith("layernorm")]
    assert kernel.processors == 1024 // kernel.plan["tile_n"]
    assert lookup.kernel(NORM, MANY, "h100:114") is not None
    assert lookup.kernel(NORM, MANY, "h100:2") is None
    assert lookup.kernel(LINEAR, MANY, "h100:2") is not None
    ((_, reason),) = lookup.refusals()
    assert reason == f"its kernel needs {kernel.processors} SMs at once, this GPU has 2"


@pytest.mark.parametrize("rows", [["1", 128], [1], [1, None], 128])
def test_a_manifest_whose_rows_are_no_numbers(folder: Path, rows: object) -> None:
    rewrite(folder, lambda data: data["kernels"][0].update(rows=rows))
    with pytest.raises(LoadError, match=r"manifest\.json cannot be read"):
        manifest.read(folder)
    assert lookup.kernel(LINEAR, (1, 128), "h200") is None


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda data: data["toolchain"].pop("nvcc"), "it has no 'nvcc'"),
        (lambda data: data["toolchain"].update(cutlass=4), "the version of cutlass has to be a string"),
        (lambda data: data.update(toolchain=[]), "toolchain has to be an object"),
        (lambda data: data.pop("toolchain"), "it has no 'toolchain'"),
        (lambda data: data["files"][0].update(bytes="many"), "bytes a whole number"),
        (lambda data: data["kernels"][0].update(gpu=200), "gpu have to be strings"),
    ],
)
def test_a_manifest_that_lacks_something(
    folder: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(LoadError, match=f"manifest.json cannot be read: .*{said}"):
        manifest.read(folder)
    assert lookup.kernel(LINEAR, (1, 128), "h200") is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 99}'])
def test_a_manifest_that_cannot_be_read(folder: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (folder / manifest.NAME).write_text(text)
    with pytest.raises(LoadError, match=r"manifest\.json cannot be read"):
        manifest.read(folder)
    with caplog.at_level(logging.WARNING, logger="comfuse"):
        assert lookup.kernel(LINEAR, MANY, "h200") is None
    assert "cannot be read" in caplog.text
    assert lookup.problems(folder)


def test_the_first_library_that_fits_serves(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    monkeypatch.setenv("COMFUSE_LIBRARY", f"{folder}{os.pathsep}{other}")
    found = lookup.kernel(LINEAR, MANY, "h200")
    assert found is not None
    assert found.path.parent == folder
    rewrite(folder, lambda data: data.update(abi_version=1))
    found = lookup.kernel(LINEAR, MANY, "h200")
    assert found is not None
    assert found.path.parent == other
    monkeypatch.delenv("COMFUSE_LIBRARY")
    assert lookup.shelves() == []
    user = tmp_path / "data" / "comfuse" / "library"
    user.parent.mkdir(parents=True)
    other.rename(user)
    assert [shelf.folder for shelf in lookup.shelves()] == [user]


def test_a_folder_that_is_named_and_is_no_library(
    compilers: Compilers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="comfuse"):
        for _ in range(3):
            assert lookup.kernel(LINEAR, MANY, "h200") is None
    ((where, reason),) = lookup.refusals()
    assert where == str(tmp_path / "library")
    assert reason.startswith("COMFUSE_LIBRARY names it, but it is no kernel library")
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert lookup.why_not(LINEAR, MANY, "h200") == [(tmp_path / "library", reason)]
    builder.build_library([small()], tmp_path / "library")  # it is seen when there is one
    assert lookup.kernel(LINEAR, MANY, "h200") is not None


def test_graphs_are_cached_by_the_libraries_that_they_may_use(folder: Path) -> None:
    before = lookup.identity()
    rewrite(folder, lambda data: data["kernels"].pop())
    assert lookup.identity() != before


def test_graphs_are_cached_where_a_library_cannot_be_read(folder: Path) -> None:
    (folder / manifest.NAME).unlink()
    (folder / manifest.NAME).mkdir()
    (reason,) = lookup.identity()
    assert "manifest.json cannot be read" in reason


def test_the_binding_comes_with_a_library(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "PREBUILT_DIR", tmp_path / "none")
    assert binding.find_binding() == folder / binding.prebuilt_path().name


PROGRAM = """\
import sys
import threading
class Absent:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("cutlass_library", "cutlass"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from comfuse.library import lookup, rows
from comfuse.generator import catalog
from comfuse.generator.spec import DType
spec = catalog.linear(128, 64, DType.BF16, bias=DType.BF16)
print(lookup.kernel(spec, (2049, rows.MAX_ROWS), "h200").workspace_bytes(3))
"""


@pytest.mark.slow
def test_needs_no_compiler(folder: Path, tmp_path: Path) -> None:
    """A process without nvcc, C++, CUTLASS, or a cache that can be written."""
    environment = {
        "PATH": "/nothing",
        "PYTHONPATH": python_path(),
        "COMFUSE_LIBRARY": str(folder),
        "COMFUSE_CACHE_DIR": "/proc/nothing",
        "COMFUSE_JIT": "off",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "24\n"), done.stderr


class TestBuilding:
    def test_again_replaces_what_is_there(self, folder: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in folder.glob("*.so")}
        (folder / "cf_pack_old-12345678.so").touch()
        (folder / "cf_pack_half.so.4711").touch()
        (folder / "notes.txt").touch()
        made = builder.build_library([small()], folder)
        assert {path: path.stat().st_mtime_ns for path in folder.glob("*.so*")} == before
        assert (folder / "notes.txt").exists()  # what is not ours stays
        assert made.kernels == manifest.read(folder).kernels

    def test_one_that_breaks_off_leaves_the_old_library(
        self, folder: Path, compilers: Compilers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(source: Path, target: Path) -> None:
            target.write_bytes(b"half")
            raise OSError("No space left on device")

        before = manifest.read(folder)
        compilers.abi = "3"  # other contents
        with monkeypatch.context() as patch:
            patch.setattr(builder.shutil, "copyfile", full)
            with pytest.raises(CacheError, match=r"cannot write the library .*No space left"):
                builder.build_library([small()], folder)
        assert manifest.read(folder) == before
        assert not lookup.problems(folder)

    def test_what_the_compiler_refuses_is_left_out(self, compilers: Compilers, tmp_path: Path) -> None:
        refused = builder.sources([small()])[0].name
        compilers.errors[refused] = BuildError(refused, Path("k.cu"), Path("k.log"), "error: no")
        made = builder.build_library([small()], tmp_path / "library")
        assert refused not in {kernel.name for kernel in made.kernels}
        assert made.kernels
        assert [r["label"].split()[0] for r in made.refused][:1] == ["linear"]
        assert "error: no" in made.refused[0]["reason"]

    def test_a_machine_that_cannot_build_is_an_error(self, compilers: Compilers, tmp_path: Path) -> None:
        name = builder.sources([small()])[0].name
        compilers.errors[name] = CacheError("the cache is full")
        with pytest.raises(CacheError, match="the cache is full"):
            builder.build_library([small()], tmp_path / "library")
        assert not (tmp_path / "library" / manifest.NAME).exists()

    def test_what_the_planner_refuses_is_left_out(self, compilers: Compilers, tmp_path: Path) -> None:
        odd = {"kernel": [{"program": "linear", "shapes": [[128, 63], [128, 64]], "rows": [128]}]}
        made = builder.build_library([catalogue.parse("odd", odd)], tmp_path / "library")
        assert len(made.kernels) == 1
        assert "K = 63 must be a multiple of 8" in made.refused[0]["reason"]

    def test_a_compiler_that_refuses_everything_leaves_the_old_library(
        self, folder: Path, compilers: Compilers
    ) -> None:
        before = manifest.read(folder)
        for source in builder.sources([small()]):
            compilers.errors[source.name] = BuildError(source.name, Path("k.cu"), Path("k.log"), "error: no")
        with pytest.raises(BuildError, match="error: no"):
            builder.build_library([small()], folder)
        assert manifest.read(folder) == before
        assert not lookup.problems(folder)

    @pytest.mark.parametrize(
        "table, error, said",
        [
            ({"shapes": [[128, 255]]}, PlanError, "linear 128x255 bf16: K = 255 must be a multiple of 8"),
            ({"shapes": [[128, 64]], "rows": [128]}, CatalogueError, "odd: none of its programs has any of"),
        ],
        ids=["refused", "no class of rows"],
    )
    def test_a_planner_that_refuses_everything_leaves_the_old_library(
        self,
        table: dict[str, Any],
        error: type[Exception],
        said: str,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        before = {path: path.read_bytes() for path in folder.iterdir()}
        odd = catalogue.parse("odd", {"kernel": [{"program": "linear", **table}]})
        if error is CatalogueError:
            monkeypatch.setattr(catalogue, "hints", lambda spec, gpu: (None,))  # those of another GPU
        with pytest.raises(error, match=said):
            builder.build_library([odd], folder)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before

    def test_a_folder_that_cannot_be_written_is_told_before_anything_is_compiled(
        self, compilers: Compilers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def build_all(*_: object, **__: object) -> None:
            pytest.fail("kernels were compiled")

        monkeypatch.setattr(builder.packs, "build_all", build_all)
        (tmp_path / "file").touch()
        with pytest.raises(CacheError, match="cannot write the library"):
            builder.build_library([small()], tmp_path / "file" / "library")

    def test_two_at_once_leave_a_whole_one(
        self, folder: Path, compilers: Compilers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second begins when the first has its kernels in the folder, but no manifest yet."""
        second = threading.Thread(target=builder.build_library, args=([small()], folder))
        write = manifest.Manifest.write

        def at_the_end(made: manifest.Manifest, into: Path) -> None:
            if not second.ident:
                compilers.abi = "3"  # other contents
                second.start()
                second.join(2)
            write(made, into)

        monkeypatch.setattr(manifest.Manifest, "write", at_the_end)
        compilers.abi = "CF_ABI_VERSION + 0"
        builder.build_library([small()], folder)
        second.join()
        assert not list(manifest.damage(folder, manifest.read(folder)))
