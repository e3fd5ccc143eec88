"""Packages of AOTInductor (``.pt2``): which kernels a model needs that was compiled into one."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comfuse.errors import LoadError

SUFFIX = ".pt2"
KEY = "COMFUSE"  # of what comfuse.inductor.aot adds to a package's metadata
_OPS = "comfuse::region"
# RuntimeError: encrypted, or compressed in a way that zipfile does not know.
_DAMAGED = (
    OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error,
    ValueError, TypeError, KeyError, AttributeError,
)  # fmt: skip


@dataclass(frozen=True)
class Package:
    """What a package says.

    Attributes:
        device: the kind of device that its model runs on: ``"cuda"`` or ``"cpu"``.
        gpu: the planner's name of the GPU that it was fused for.
        programs: the texts of the programs that it calls, each with its numbers of rows; empty: any number.
    """

    path: Path
    device: str
    gpu: str
    programs: dict[str, tuple[int, ...]]


def read(path: Path) -> Package:
    """What the package at ``path`` says.

    Raises:
        FileNotFoundError: there is none.
        LoadError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            parts = [json.loads(archive.read(name)) for name in archive.namelist() if _is_data(name)]
        noted = [
            json.loads(part[KEY]) for part in parts if KEY in part
        ]  # several where it has several models
        called = dict.fromkeys(text for part in parts for text in _called(part))
        programs = {text: _numbers([one["rows"].get(text, ()) for one in noted]) for text in called}
        device = next((part["AOTI_DEVICE_KEY"] for part in parts if "AOTI_DEVICE_KEY" in part), "cpu")
        gpu = next((one["gpu"] for one in noted), "h200")
        return Package(path, device, gpu, programs)
    except FileNotFoundError:
        raise
    except _DAMAGED as e:
        raise LoadError(f"{path} cannot be read as a package of AOTInductor: {e}") from e


def _is_data(name: str) -> bool:
    return "/data/aotinductor/" in name and name.endswith(".json")


def _called(part: dict[str, Any]) -> Iterator[str]:
    """The programs that the nodes of a model, which its own code does not run, call ComFuse with."""
    for node in (entry["node"] for entry in part.get("nodes", ())):
        if node["target"].startswith(_OPS):
            yield from (given["arg"]["as_string"] for given in node["inputs"] if given["name"] == "spec")


def _numbers(noted: Iterable[Iterable[int | None]]) -> tuple[int, ...]:
    numbers = dict.fromkeys(number for of_model in noted for number in of_model)
    return () if None in numbers else tuple(number for number in numbers if number is not None)
