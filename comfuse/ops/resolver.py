"""From a spec to a registered kernel, when a call has none yet; and back from the binding's errors to typed
ones.
"""

from __future__ import annotations

import os
import re
import threading
from functools import lru_cache

import torch
from torch import Tensor

from comfuse import calibration, errors, fallbacks, library, settings
from comfuse.build import build
from comfuse.build.compile import ENVIRONMENT_FLAGS
from comfuse.errors import BuildError, CacheError, ComFuseError, JitDisabledError, PlanError, ToolchainError
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import GPUS, Gpu
from comfuse.generator.spec import FusedSpec
from comfuse.library import LoadedKernel, lookup
from comfuse.library.rows import M_CLASSES, classes_on, m_class, served
from comfuse.library.source import source_of
from comfuse.ops import native, programs

__all__ = [
    "M_CLASSES",
    "calibrated_gpu",
    "classes_of",
    "current_gpu",
    "m_class",
    "planner_gpu",
    "reason",
    "refusal",
    "resolve",
    "shelved",
    "translate",
    "turned_off",
    "unsupported_gpu",
]

_TURNED_OFF = "COMFUSE_CHAINS is 0, which turns off kernels of GEMMs back to back"
_LOCK = threading.RLock()
_PENDING = threading.local()  # the exception behind the message that C++ is carrying
# Why a spec is not fused, or what the compiler has against its kernel, by (spec, class of rows, device), and
# the GPU and environment that this depends on.
_REFUSED: dict[tuple[str, int | None, int], tuple[str | BuildError, tuple[object, ...]]] = {}
_ENVIRONMENT = (
    "COMFUSE_CHAINS", "COMFUSE_JIT", "COMFUSE_TUNED", "COMFUSE_CACHE_DIR", "COMFUSE_CUTLASS_DIR",
    "COMFUSE_NVCC_FLAGS", "COMFUSE_COMPILER_LAUNCHER", "COMFUSE_BUILD_TIMEOUT", "CUDA_HOME", "CUDA_PATH",
    "PATH", *ENVIRONMENT_FLAGS,
)  # fmt: skip


def classes_of(spec: str, device: int) -> tuple[int, ...]:
    """The upper bounds of a spec's classes of rows on a device (:func:`comfuse.library.rows.classes_on`)."""
    return classes_on(programs.parse(spec).spec, planner_gpu(device))


def resolve(spec: str, rows: int, device: int) -> int | str:
    """Registers a kernel: a library's, else one that is planned and built now.  The binding's resolver
    (native.Resolve).

    ``rows``: of all batches, those that pad a batch to whole row blocks included; 0 registers the program.
    """
    try:
        with _LOCK:
            return _resolve(spec, rows, device)
    except ComFuseError as e:
        _PENDING.error = e
        return f"[{type(e).__name__}] {e}"


def _resolve(spec: str, rows: int, device: int) -> int:
    native.register_program(spec)
    if rows == 0:
        return 0
    key = (spec, m_class(rows, classes_of(spec, device)), device)
    of_settings = (os.environ.get(name) for name in _ENVIRONMENT)
    environment = (calibrated_gpu(device), *of_settings, *lookup.versions())
    why, when = _REFUSED.get(key, ("", ()))
    if not why or when != environment:
        try:
            why = _register(*key)
        except BuildError as e:  # it takes seconds to hear that again
            why = e
        if not why:
            return 0
        _REFUSED[key] = (why, environment)
    if isinstance(why, BuildError):
        raise BuildError(why.kernel, why.source, why.log, why.message)  # one with a traceback of its own
    if settings.strict():
        fallbacks.record(programs.name_of(spec), why)  # raises here, where the message is not lost in C++
    return 1


def _register(spec: str, hint: int | None, device: int) -> str:
    """Registers the kernel of a class of rows.  Returns why it cannot be, or an empty string.

    Raises:
        BuildError: the compiler refuses the kernel.
    """
    unsupported = unsupported_gpu(device)
    if unsupported:
        return unsupported
    program = programs.parse(spec).spec
    if turned_off(program):
        return turned_off(program)
    classes = classes_of(spec, device)
    kernel = _shelved(spec, hint, device)
    if kernel is not None:
        native.register(spec, kernel, *served(hint, classes))
        return ""
    try:
        source = source_of(program, calibrated_gpu(device), hint)
    except PlanError as e:
        return str(e)
    try:
        kernel = library.load(build(source))
    except (CacheError, JitDisabledError, ToolchainError) as e:
        if settings.jit() == "require":
            raise
        return "; ".join([str(e), *_why_no_library(spec, hint, device)])
    native.register(spec, kernel, *served(hint, classes))
    return ""


def turned_off(program: FusedSpec | ChainSpec) -> str:
    """Why the settings allow a program no kernel, or an empty string."""
    return _TURNED_OFF if isinstance(program, ChainSpec) and not settings.chains() else ""


def shelved(spec: str, rows: int, device: int) -> LoadedKernel | None:
    """The kernel that a library has for a call with this spec and number of rows, if any."""
    return _shelved(spec, m_class(rows, classes_of(spec, device)), device)


def _shelved(spec: str, hint: int | None, device: int) -> LoadedKernel | None:
    program = programs.parse(spec).spec
    return lookup.kernel(program, served(hint, classes_of(spec, device)), planner_gpu(device))


def _why_no_library(spec: str, hint: int | None, device: int) -> list[str]:
    program = programs.parse(spec).spec
    answers = lookup.why_not(program, served(hint, classes_of(spec, device)), planner_gpu(device))
    return [f"kernel library {folder}: {reason}" for folder, reason in answers]


@lru_cache
def unsupported_gpu(device: int) -> str:
    """Why kernels cannot run on this CUDA device, or an empty string."""
    capability = torch.cuda.get_device_capability(device)
    if capability == (9, 0):
        return ""
    name = torch.cuda.get_device_name(device)
    return f"{name} has compute capability {capability[0]}.{capability[1]}; kernels need 9.0 (Hopper)"


def current_gpu(op: str, hint: str) -> int:
    """The index of the current CUDA device, on which kernels can run.

    Raises:
        DeviceError: they cannot; with ``hint``, what holds without.
    """
    why = "none: there is no CUDA device"
    if torch.cuda.is_available():
        why = unsupported_gpu(torch.cuda.current_device())
    if why:
        allowed = "a Hopper GPU (compute capability 9.0)"
        raise errors.DeviceError(op, "the current GPU", why, allowed, hint)
    return torch.cuda.current_device()


@lru_cache
def planner_gpu(device: int) -> str:
    """The planner's name of a Hopper GPU, with its own number of SMs: how wide a row reduction may be
    depends on it.  One that the planner does not know is planned for as the first it knows.
    """
    properties = torch.cuda.get_device_properties(device)
    known = next((k for k in GPUS if k in properties.name.lower()), next(iter(GPUS)))
    count = properties.multi_processor_count
    return known if count == GPUS[known].processors else f"{known}:{count}"


def calibrated_gpu(device: int) -> Gpu:
    """The GPU as it is planned for: with what was measured of it (:mod:`comfuse.calibration`)."""
    return calibration.gpu(planner_gpu(device))


def reason(spec: str, a: Tensor) -> str:
    """Why a call with this spec runs the reference."""
    if not a.is_cuda or not native.is_loaded():
        return native.reason_against(a) or "asked for"
    hint = m_class(programs.parse(spec).rows(a.shape[:-1]), classes_of(spec, a.device.index))
    return refusal(spec, hint, a.device.index)


def refusal(spec: str, hint: int | None, device: int) -> str:
    """Why the kernel of a class of rows was not registered when it was last asked for."""
    return str(_REFUSED.get((spec, hint, device), ("asked for", ()))[0])


_TYPED = re.compile(r"comfuse: \[(\w+)\] (.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(\S+) is (.*?); allowed: (.*)", re.DOTALL)


def translate(error: RuntimeError, op: str) -> Exception:
    """The typed error behind a RuntimeError from the dispatcher, or the same error if it is not ours."""
    pending = getattr(_PENDING, "error", None)
    _PENDING.error = None
    found = _TYPED.search(str(error))
    if found is None:
        return error
    name, text = found.groups()
    if pending is not None and type(pending).__name__ == name:
        return pending
    cls = getattr(errors, name, ComFuseError)
    argument = _ARGUMENT.match(text)
    if issubclass(cls, errors.ArgumentError) and argument is not None:
        return cls(op, *argument.groups())
    return errors.LaunchError(text) if cls is errors.LaunchError else errors.LoadError(text)


native.set_resolver(resolve)
