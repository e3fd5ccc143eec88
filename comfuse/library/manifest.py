"""What a kernel library holds: ``manifest.json`` beside its files, readable without a compiler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from comfuse.build.cache import hash_file
from comfuse.build.files import write_whole
from comfuse.build.headers import digest
from comfuse.errors import LoadError
from comfuse.library import abi

NAME = "manifest.json"
FORMAT = 1


def device_code() -> str:
    """Hash of the device headers that every kernel is made from."""
    return digest("#include <comfuse/sm90/fused_gemm.hpp>\n")[:16]


@dataclass(frozen=True)
class File:
    """A shared library with some of the kernels.

    Attributes:
        digest: its SHA-256.
        ptxas: registers, spills and messages, the worst of its kernels.
    """

    name: str
    digest: str
    bytes: int
    ptxas: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """A kernel, for one program and one class of numbers of rows.

    Attributes:
        name: the kernel's stem.
        file: the file that it is in.
        label: the catalogue's word for the program.
        spec: text of the program that was asked for.
        signature: :func:`comfuse.library.signature.signature` of it.
        gpu: whom it was planned for.
        rows: the smallest and the largest number of rows, of all batches together, that it serves.
        processors: SMs that it needs, because some tiles wait for others; 1 if none do.
        plan: tile shape, schedule and what else was decided.
    """

    name: str
    file: str
    label: str
    spec: str
    signature: str
    gpu: str
    rows: tuple[int, int]
    processors: int
    plan: dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """A library as a whole.

    Attributes:
        abi_version: of csrc/include/comfuse/abi.h.
        device_code: :func:`device_code` of the ComFuse that built it.
        comfuse: that ComFuse's version.
        toolchain: versions of nvcc and CUTLASS, and nvcc's flags.
        catalogues: their names.
        refused: programs of the catalogues that are not in the library: label, rows and reason.
    """

    abi_version: int
    device_code: str
    comfuse: str
    toolchain: dict[str, Any]
    catalogues: tuple[str, ...]
    files: tuple[File, ...]
    kernels: tuple[Kernel, ...]
    refused: tuple[dict[str, Any], ...] = ()

    @cached_property
    def by_signature(self) -> dict[str, list[Kernel]]:
        found: dict[str, list[Kernel]] = {}
        for kernel in self.kernels:
            found.setdefault(kernel.signature, []).append(kernel)
        return found

    @cached_property
    def files_by_name(self) -> dict[str, File]:
        return {file.name: file for file in self.files}

    def unfit(self) -> str:
        """Why this ComFuse cannot use the library, or an empty string."""
        if self.abi_version != abi.ABI_VERSION:
            return (
                f"it was built for ABI version {self.abi_version}, this ComFuse has {abi.ABI_VERSION}: build "
                "it again"
            )
        if self.device_code != device_code():
            return (
                f"it was built from other device code ({self.device_code}, by ComFuse {self.comfuse}; this "
                f"one has {device_code()}): build it again"
            )
        return ""

    def write(self, folder: Path) -> None:
        """Puts the manifest into ``folder``, in one step.  Raises OSError."""
        data = {"format": FORMAT, **asdict(self)}
        write_whole(folder / NAME, json.dumps(data, indent=1, sort_keys=True) + "\n")


def read(folder: Path) -> Manifest:
    """The manifest of the library in ``folder``.

    Raises:
        FileNotFoundError: there is none.
        LoadError: it cannot be read.
    """
    path = folder / NAME
    try:
        data = json.loads(path.read_text())
        if data.pop("format") != FORMAT:
            raise ValueError("it has another format: build the library again")
        return Manifest(
            **{
                **data,
                "toolchain": _toolchain(data["toolchain"]),
                "catalogues": tuple(map(str, data["catalogues"])),
                "files": tuple(map(_file, data["files"])),
                "kernels": tuple(map(_kernel, data["kernels"])),
                "refused": tuple(data["refused"]),
            }
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        reason = f"it has no {e}" if isinstance(e, KeyError) else e
        raise LoadError(f"the kernel library's {path} cannot be read: {reason}") from e


def _toolchain(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError("toolchain has to be an object")
    for tool in ("nvcc", "cutlass"):
        if not isinstance(data[tool], str):
            raise ValueError(f"toolchain: the version of {tool} has to be a string")
    return data


def _file(data: dict[str, Any]) -> File:
    file = File(**data)
    if not (isinstance(file.name, str) and isinstance(file.digest, str) and type(file.bytes) is int):
        raise ValueError(f"{file.name}: name and digest have to be strings, bytes a whole number")
    return file


def _kernel(data: dict[str, Any]) -> Kernel:
    low, high = data["rows"]
    kernel = Kernel(**{**data, "rows": (low, high)})
    if not all(type(number) is int for number in (low, high, kernel.processors)):
        raise ValueError(f"{kernel.name}: rows and processors have to be whole numbers")
    strings = ("name", "file", "label", "spec", "signature", "gpu")
    if not all(isinstance(getattr(kernel, name), str) for name in strings):
        raise ValueError(f"{kernel.name}: {', '.join(strings)} have to be strings")
    return kernel


def damage(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Files of a library that are not what its manifest says, each with what is wrong."""
    for file in manifest.files:
        reason = damage_of(folder, file)
        if reason:
            yield file.name, reason


def visible_damage(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """As :func:`damage`, without reading the files: those that are gone, or of another size."""
    for file in manifest.files:
        try:
            size = (folder / file.name).stat().st_size
        except OSError as e:
            yield file.name, f"it cannot be read: {e}"
            continue
        if size != file.bytes:
            yield file.name, f"it has {size} bytes, of {file.bytes}"


def damage_of(folder: Path, file: File) -> str:
    """What is wrong with one file, or an empty string."""
    try:
        return "" if hash_file(folder / file.name) == file.digest else "it does not match its digest"
    except OSError as e:
        return f"it cannot be read: {e}"
