"""``comfuse doctor``: what there is on this machine, and what will work."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import comfuse
from comfuse import calibration, settings
from comfuse.build.binding import find_binding
from comfuse.build.toolkit import find_cuda, find_cutlass, find_cxx
from comfuse.errors import ComFuseError, SettingError, TableError
from comfuse.library import lookup
from comfuse.library.manifest import visible_damage
from comfuse.library.tuned import lookup as tuned


@dataclass(frozen=True)
class Finding:
    """One line of the report.  ``ok`` is None where the line is only information."""

    what: str
    found: str
    ok: bool | None = None


def findings() -> list[Finding]:
    """What there is, from the GPU to the cache."""
    return [
        *_gpu(),
        *_software(),
        *_toolchain(),
        *_cache(),
        *_libraries(),
        *_tuning(),
        *_calibrations(),
        *_environment(),
    ]


def abilities(found: list[Finding]) -> list[Finding]:
    """What will work, given the findings."""
    ok: dict[str, bool] = {}
    for f in found:  # of several GPUs one is enough
        ok[f.what] = ok.get(f.what, False) or bool(f.ok)
    compiles = bool(ok["nvcc"] and ok["CUTLASS"] and ok["C++"] and ok["torch"] and ok["cache"] and ok["JIT"])
    missing = ", ".join(name for name in ("torch", "nvcc", "CUTLASS", "C++", "cache", "JIT") if not ok[name])
    binding = bool(ok["binding"] or (ok["C++"] and ok["JIT"]))
    return [
        Finding("trace, plan, emit, explain", "yes", True),
        Finding("fused ops on CPU tensors", "yes, by the float32 reference", True),
        Finding("compile kernels", "yes" if compiles else f"no: {missing}", compiles),
        Finding(
            "run kernels",
            "yes"
            if ok["GPU"] and binding
            else "no: no Hopper GPU"
            if not ok["GPU"]
            else "no: the torch binding",
            bool(ok["GPU"] and binding),
        ),
    ]


def _gpu() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        why = "torch is not a CUDA build" if torch.version.cuda is None else "no CUDA device"
        yield Finding("GPU", why, False)
        return
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        hopper = (p.major, p.minor) == (9, 0)
        memory = f"{p.total_memory / 2**30:.0f} GiB, {p.multi_processor_count} SMs"
        name = f"{p.name}, compute capability {p.major}.{p.minor}, {memory}"
        yield Finding("GPU", name if hopper else f"{name}: kernels need 9.0 (Hopper)", hopper)
    yield Finding("driver", _driver())


def _driver() -> str:
    """The driver's version and the newest CUDA it serves."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        words = []
    version = next((word for word in words if word[0].isdigit() and "." in word), "version unknown")
    number = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
        return version
    return f"{version}, for CUDA up to {number.value // 1000}.{number.value % 1000 // 10}"


def _software() -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()}, {platform.platform()}")
    yield Finding("comfuse", f"{comfuse.__version__}, {Path(comfuse.__file__).parent}")
    cuda = torch.version.cuda
    build = f"built for CUDA {cuda}" if cuda else "not a CUDA build: kernels cannot be compiled or run"
    yield Finding("torch", f"{torch.__version__}, {build}", cuda is not None)
    yield Finding("binding", *_binding())


def _binding() -> tuple[str, bool]:
    path = find_binding()
    return (str(path), True) if path is not None else ("not built yet; built at the first CUDA call", False)


def _toolchain() -> Iterator[Finding]:
    try:
        cuda = find_cuda()
        yield Finding("nvcc", f"{cuda.version}, CUDA_HOME = {cuda.home}, from {cuda.source}", True)
    except ComFuseError as e:
        yield Finding("nvcc", str(e), False)
    try:
        cutlass = find_cutlass()
        yield Finding("CUTLASS", f"{cutlass.version}, {cutlass.include}, from {cutlass.source}", True)
    except ComFuseError as e:
        yield Finding("CUTLASS", str(e), False)
    try:
        path, version = find_cxx()
        yield Finding("C++", f"{version}, {path}", True)
    except ComFuseError as e:
        yield Finding("C++", str(e), False)


def _cache() -> Iterator[Finding]:
    folder = settings.cache_dir()
    entries = [f for f in (folder / "kernels").glob("*") if f.is_dir()]
    size = sum(map(_size, folder.rglob("*")))
    found = f"{folder}: {len(entries)} libraries, {size / 2**20:.1f} MiB"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".doctor"
        probe.touch()
        probe.unlink()
    except OSError as e:
        yield Finding("cache", f"{found}, not writable: {e}", False)
        return
    yield Finding("cache", found, True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # a build that is under way has removed it
        return 0


def _libraries() -> Iterator[Finding]:
    for shelf in lookup.shelves():
        if shelf.unfit or shelf.manifest is None:
            yield Finding("library", f"{shelf.folder}: not used: {shelf.unfit}", False)
            continue
        damaged = [f"{name}: {reason}" for name, reason in visible_damage(shelf.folder, shelf.manifest)]
        said = [f"{len({kernel.name for kernel in shelf.manifest.kernels})} kernels"]
        said += [f"{len(damaged)} of {len(shelf.manifest.files)} files damaged"] if damaged else []
        yield Finding("library", f"{shelf.folder}: {', '.join(said)}", not damaged)
        for one in damaged:
            yield Finding("  damaged", one, False)


def _tuning() -> Iterator[Finding]:
    for path in tuned.paths():
        try:
            table = tuned.table(path)
        except TableError as e:
            yield Finding("tuning", str(e), False)
            continue
        yield Finding("tuning", f"{path}: {table.unfit or f'{len(table.entries)} choices'}", not table.unfit)


def _calibrations() -> Iterator[Finding]:
    for file in sorted(settings.calibration().glob("*.json")):
        name = file.stem.replace("-", ":")
        try:
            found = calibration.read(name)
        except ComFuseError as e:
            yield Finding("calibration", str(e), False)
            continue
        if found is not None:
            said = f"median error {100 * found.error:.1f} %, {found.date}"
            yield Finding("calibration", f"{name} ({file}): {said}", True)
            for constant, (own, measured) in found.changed().items():
                yield Finding(f"  {constant}", f"{own:.4g} -> {measured:.4g}")


def _environment() -> Iterator[Finding]:
    try:
        jit = settings.jit()
        yield Finding("JIT", "off: nothing is compiled" if jit == "off" else jit, jit != "off")
    except SettingError as e:
        yield Finding("JIT", str(e), False)
    for variable in settings.TABLE:
        try:
            value = variable.get()
        except SettingError as e:
            yield Finding(variable.name, str(e), False)
            continue
        if value != variable.default():
            yield Finding(variable.name, os.environ[variable.name])
