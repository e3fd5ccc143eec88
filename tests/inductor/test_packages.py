"""Models in packages of AOTInductor: compiled here, run in processes without a compiler, their kernels in a
library beside them."""

from __future__ import annotations

import itertools
import json
import os
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from filelock import FileLock

import comfuse
from comfuse import deploy
from comfuse.build import folders
from comfuse.cli import main
from comfuse.errors import ArgumentError, CatalogueError, JitDisabledError, LoadError
from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.chain import parse_program
from comfuse.generator.spec import DType
from comfuse.inductor import aot
from comfuse.inductor.verdict import Verdict
from comfuse.library import builder, catalogue, lookup, manifest, package, rows
from comfuse.ops import native, resolver, served
from tests.inductor import packaged
from tests.library.stubs import Compilers, compilers

__all__ = ["compilers"]

BF16 = DType.BF16
LINEAR = catalog.linear(128, 64, BF16, bias=BF16).text()
CHAIN = catalog.b2b(64, 128, 256, BF16).text()
ANY: list[int | None] = [None]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent  # what all workers share
    with FileLock(folder / "package.lock"):
        made = folder / "exported.pt2"
        if not made.is_file():
            packaged.export(tmp_path_factory.mktemp("package"), "cpu").rename(made)
    return made


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is found but those that a test makes."""
    monkeypatch.setattr(folders, "_ADDED", {})
    monkeypatch.setattr(lookup, "_SHELVES", {})
    monkeypatch.setattr(resolver, "_REFUSED", {})


def write(path: Path, rows: dict[str, list[int | None]], *, device: str = "cuda", gpu: str = "h100") -> Path:
    """A package that calls these programs, without its code."""
    node = {"target": "comfuse::region_1.t1"}
    called = [
        {"node": {**node, "inputs": [{"name": "spec", "arg": {"as_string": text}}, {"name": "a", "arg": {}}]}}
        for text in rows
    ]
    metadata = {"AOTI_DEVICE_KEY": device, package.KEY: json.dumps({"gpu": gpu, "rows": rows})}
    with zipfile.ZipFile(path, "w") as archive:
        folder = f"{path.stem}/data/aotinductor/model"
        archive.writestr(f"{folder}/a.wrapper.json", json.dumps({"nodes": called}))
        archive.writestr(f"{folder}/a.wrapper_metadata.json", json.dumps(metadata))
        archive.writestr(f"{folder}/a.wrapper.so", b"no JSON")
    return path


def why_not(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["library", "why-not", str(path), *options])
    return result.exit_code, result.output


@pytest.mark.slow
def test_a_process_without_compilers_runs_it(exported: Path) -> None:
    """Two kernels, one of them without operands, for numbers of rows that the export did not see."""
    assert list(packaged.runs(exported, "cpu", 1, 24, 130)) == [""]


def test_it_says_what_it_needs(exported: Path) -> None:
    made = package.read(exported)
    assert (made.device, made.gpu) == ("cpu", "h200")
    assert [(parse_program(text).n, rows) for text, rows in made.programs.items()] == [(128, ()), (64, ())]  # type: ignore[union-attr]
    assert not deploy.kernels_of(exported).exists()  # a CPU runs none


def test_its_library_is_found_beside_it(
    exported: Path, tmp_path: Path, alone: None, compilers: Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built from the package alone; a kernel that is missing is named."""
    monkeypatch.delenv("COMFUSE_LIBRARY")
    path = tmp_path / "model.pt2"
    path.write_bytes(exported.read_bytes())
    library = deploy.kernels_of(path)
    assert why_not(path)[0] == 1
    result = CliRunner().invoke(main, ["build-library", str(path), "-o", str(library)])
    assert result.exit_code == 0, result.output
    assert "model: 3 kernels for 8 classes of rows of 2 programs" in result.output
    code, said = why_not(path)
    assert (code, said.count("has it")) == (0, 8)
    table = (library / served.NAME).read_text().splitlines()
    assert [sum(line.startswith(word) for line in table) for word in ("program", "kernel")] == [2, 8]
    data = json.loads((library / manifest.NAME).read_text())
    gone = data["kernels"].pop()
    (library / manifest.NAME).write_text(json.dumps(data))
    code, said = why_not(path)
    assert (code, said.count("has it")) == (1, 7)
    assert f"rows {gone['rows'][0]} to {gone['rows'][1]}\n  {library}: its kernels serve" in said


def test_why_not_asks_for_the_gpu_of_the_package(tmp_path: Path, alone: None) -> None:
    """Of a program whose tiles wait for each other the classes of rows are those of the GPU."""
    b = SpecBuilder(512, 512, BF16)
    x = b.gemm()
    b.output("y", b.op("sub", x, b.op("col_sum", x)), BF16)
    spec = b.spec()
    most = {gpu: rows.classes_on(spec, gpu)[-1] for gpu in ("h200", "h100:64")}
    assert most["h100:64"] < most["h200"]
    path = write(tmp_path / "model.pt2", {spec.text(): [most["h100:64"]]}, gpu="h100:64")
    for options, gpu in (((), "h100:64"), (("--gpu", "h200"), "h200")):
        classes = rows.classes_on(spec, gpu)
        low, high = rows.served(rows.m_class(most["h100:64"], classes), classes)
        code, said = why_not(path, *options)
        assert code == 1
        assert f"rows {low} to {high}\n" in said


def test_only_the_rows_that_it_was_exported_for(tmp_path: Path, compilers: Compilers) -> None:
    path = write(tmp_path / "model.pt2", {LINEAR: [300, 310, 5000], CHAIN: ANY})
    read = catalogue.read(str(path))
    assert (read.name, read.gpu) == ("model", "h100")
    assert [(entry.label, entry.rows) for entry in read.entries] == [
        ("spec 128x64", (512, None)),
        ("chain 64x128x256", None),
    ]
    made = builder.build_library([read], tmp_path / "library")
    assert sorted(k.rows for k in made.kernels if k.signature == made.kernels[0].signature) == [
        (129, 512),
        (2049, 2**31 - 1),
    ]


def test_the_pass_notes_what_it_fused() -> None:
    from torch._inductor import config
    from torch._inductor.virtualized import V

    left = Verdict("mm", None, False, "too small", (1, 2, 3))
    fused = Verdict("mm_1", None, True, "", (1, 2, 3), kernels=((LINEAR, 300), (CHAIN, None)))
    users = {"mine": "1"}
    with config.patch({"aot_inductor.metadata": users}):
        aot.note([left, fused], "h100:114")
        assert package.KEY not in config.aot_inductor.metadata
        with V.set_aot_compilation(True):
            aot.note([left, fused, fused], "h100:114")
        noted = dict(config.aot_inductor.metadata)
    assert users == {"mine": "1"}
    assert json.loads(noted.pop(package.KEY)) == {"gpu": "h100:114", "rows": {LINEAR: [300], CHAIN: [None]}}
    assert noted == users


def test_a_package_of_several_models(tmp_path: Path) -> None:
    """One runs a program with fixed rows, the other with any; and one that the pass knew nothing of."""
    path = write(tmp_path / "model.pt2", {LINEAR: [300], CHAIN: [1]})
    metadata = {package.KEY: json.dumps({"gpu": "h100", "rows": {LINEAR: [40], CHAIN: ANY}})}
    other = catalog.linear(8, 8, BF16).text()
    node = {"target": "comfuse::region", "inputs": [{"name": "spec", "arg": {"as_string": other}}]}
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/data/aotinductor/other/b.wrapper_metadata.json", json.dumps(metadata))
        archive.writestr(
            "model/data/aotinductor/other/b.wrapper.json", json.dumps({"nodes": [{"node": node}]})
        )
    assert package.read(path).programs == {LINEAR: (300, 40), CHAIN: (), other: ()}


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(17), b"no zip"])
def test_a_package_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"model\.pt2 cannot be read as a package of AOTInductor"):
        comfuse.load(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_package_that_is_damaged_anywhere(tmp_path: Path, compression: int) -> None:
    """Each byte in turn: nothing but a LoadError, or what does not read the byte."""
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w", compression) as archive:
        part = json.dumps({package.KEY: json.dumps({"gpu": "h200", "rows": {}})})
        archive.writestr("m/data/aotinductor/model/a.wrapper_metadata.json", part)
    whole = path.read_bytes()
    refused = 0
    for place, value in itertools.product(range(len(whole)), (0x00, 0x61, 0xFF)):
        path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            package.read(path)
        except LoadError:
            refused += 1
    assert refused > len(whole)


def test_a_package_that_needs_no_kernel(tmp_path: Path) -> None:
    path = write(tmp_path / "model.pt2", {})
    with pytest.raises(CatalogueError, match=r"calls no kernel: compile it with inductor_configs=comfuse"):
        catalogue.read(str(path))


def test_a_path_of_another_kind() -> None:
    with pytest.raises(ArgumentError, match=r"path is 'model\.so'; allowed: a path that ends in \.pt2"):
        comfuse.export(None, "model.so")  # type: ignore[arg-type]


class TestLoadingOnAGpu:
    """What it checks before torch loads a package."""

    @pytest.fixture(autouse=True)
    def gpu(
        self, alone: None, compilers: Compilers, monkeypatch: pytest.MonkeyPatch
    ) -> list[tuple[int, int]]:
        """A Hopper GPU, as the resolver sees it; the rows of the kernels that reach the binding."""
        registered: list[tuple[int, int]] = []

        def build(source: object) -> None:
            raise JitDisabledError("cf_kernel")

        def register(spec: str, kernel: object, *rows: int) -> None:
            registered.append(rows)  # type: ignore[arg-type]

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(resolver, "unsupported_gpu", lambda device: "")
        monkeypatch.setattr(resolver, "planner_gpu", lambda device: "h200")
        monkeypatch.setattr(resolver, "build", build)
        monkeypatch.setattr(native, "register_program", lambda spec: None)
        monkeypatch.setattr(native, "register", register)
        monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path, **_: path)
        monkeypatch.setenv("COMFUSE_JIT", "off")
        return registered

    def test_all_kernels_are_at_hand(self, tmp_path: Path, gpu: list[tuple[int, int]]) -> None:
        path = write(tmp_path / "model.pt2", {LINEAR: [300], CHAIN: ANY})
        builder.build_library([catalogue.read(str(path))], deploy.kernels_of(path))
        assert comfuse.load(path) == str(path)
        assert gpu == [(129, 512), (1, 128), (129, 512), (513, 2048), (2049, 2**31 - 1)]

    def test_one_is_missing(self, tmp_path: Path) -> None:
        path = write(tmp_path / "model.pt2", {LINEAR: [300, 3000]})
        with pytest.raises(LoadError, match=r"cf_kernel is not in the cache and COMFUSE_JIT=off"):
            comfuse.load(path)
        small = write(tmp_path / "small.pt2", {LINEAR: [300]})
        builder.build_library([catalogue.read(str(small))], deploy.kernels_of(path))
        with pytest.raises(LoadError) as caught:
            comfuse.load(path)
        assert "its kernels serve 129 to 512 rows, not 2049 to 2147483647" in str(caught.value)
        command = f"comfuse build-library {path} -o {tmp_path / 'model.kernels'}"
        assert f"`{command}` builds them where there is nvcc" in str(caught.value)

    def test_what_no_kernel_can_do_is_not_missing(self, tmp_path: Path) -> None:
        """It falls back when it is called, as outside packages."""
        path = write(tmp_path / "model.pt2", {catalog.linear(128, 63, BF16).text(): ANY})
        assert comfuse.load(path) == str(path)

    @pytest.mark.parametrize("strict", ["0", "1"])
    def test_chains_that_are_turned_off_are_not_missing(
        self, strict: str, tmp_path: Path, gpu: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They fall back, or raise, when they are called; the other kernels are at hand."""
        path = write(tmp_path / "model.pt2", {LINEAR: [300], CHAIN: [300]})
        builder.build_library([catalogue.read(str(path))], deploy.kernels_of(path))
        monkeypatch.setenv("COMFUSE_CHAINS", "0")
        monkeypatch.setenv("COMFUSE_STRICT", strict)
        assert comfuse.load(path) == str(path)
        assert gpu == [(129, 512)]
        answer = resolver.resolve(CHAIN, 300, 0)
        assert "COMFUSE_CHAINS is 0" in (resolver.refusal(CHAIN, 512, 0) if answer == 1 else str(answer))

    def test_another_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path / "model.pt2", {LINEAR: ANY})
        monkeypatch.setattr(resolver, "unsupported_gpu", lambda device: "A100 has compute capability 8.0")
        with pytest.raises(LoadError, match=r"A100 has compute capability 8\.0.*exported for \(h100\)"):
            comfuse.load(path)

    def test_no_gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path / "model.pt2", {LINEAR: ANY})
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(LoadError, match=r"is for a GPU, and torch sees none here"):
            comfuse.load(path)
