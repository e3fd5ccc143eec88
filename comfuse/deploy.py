"""Models compiled ahead of time: a package of AOTInductor, and beside it a library of its kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from comfuse import fallbacks
from comfuse.build import folders
from comfuse.errors import ArgumentError, LoadError, PlanError
from comfuse.generator.chain import ChainSpec, parse_program
from comfuse.generator.spec import FusedSpec
from comfuse.inductor.entrances import options
from comfuse.library import builder, catalogue, package, tuned
from comfuse.library.package import Package
from comfuse.library.rows import MAX_ROWS, classes_on, hints, m_class
from comfuse.ops import resolver, served

PathLike = str | os.PathLike[str]


def kernels_of(path: PathLike) -> Path:
    """The folder beside a package that has its kernels: ``model.kernels`` for ``model.pt2``."""
    return Path(path).with_suffix(".kernels")


def export(
    program: ExportedProgram,
    path: PathLike,
    *,
    force: bool = False,
    gpu: str | None = None,
    jobs: int | None = None,
    **inductor: Any,
) -> Path:
    """Compiles an exported model with AOTInductor and ComFuse into a package, its kernels into a folder
    beside it (:func:`kernels_of`), which is a kernel library.

    Both together run where there is no compiler: :func:`load`, or torch's own ``aoti_load_package`` after
    ``import comfuse``, with the folder in ``COMFUSE_LIBRARY``.  A model for the CPU has no kernels.

    Args:
        program: of ``torch.export.export``; symbolic sizes are rows.
        path: of the package; ends in ``.pt2``.
        force, gpu: as for :func:`comfuse.options`.
        jobs: as for :func:`comfuse.library.builder.build_library`.
        inductor: TorchInductor's own options.

    Returns:
        The package's path.

    Raises:
        ArgumentError: the path has another suffix.
        ToolchainError, JitDisabledError, CacheError: kernels are needed and nothing can be built.
        PlanError, BuildError: not one of its kernels can be planned or compiled.
        FallbackError: a kernel cannot be built and ``COMFUSE_STRICT`` is 1.
    """
    path = Path(path)
    if path.suffix != package.SUFFIX:
        raise ArgumentError("export", "path", repr(str(path)), f"a path that ends in {package.SUFFIX}")
    configs = options(force=force, gpu=gpu, jit="require", **inductor)
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)
    made = package.read(path)
    if made.device == "cuda" and made.programs:
        library = builder.build_library([catalogue.of_package(made)], kernels_of(path), jobs=jobs)
        served.write(kernels_of(path), made.programs, library)
        for refused in library.refused:
            low, high = refused["rows"]
            fallbacks.record("export", f"{refused['label']}, {low} to {high} rows: {refused['reason']}")
    return path


def load(path: PathLike, **runner: Any) -> Any:
    """The model in a package, with all its kernels at hand.

    They are looked for beside it (:func:`kernels_of`) and in every other kernel library, and where there is
    a compiler and ``COMFUSE_JIT`` allows, built.

    Args:
        path: of the package.
        runner: arguments of ``torch._inductor.aoti_load_package``.

    Raises:
        FileNotFoundError: there is no package.
        LoadError: it cannot be read, or a kernel cannot run here: it is in no library, or for
            another kind of GPU; says what to do.  Chains under ``COMFUSE_CHAINS=0`` need none.
    """
    made = package.read(Path(path))
    folders.add(kernels_of(path))
    if made.device == "cuda":
        _check(made, runner.get("device_index", -1))
    return torch._inductor.aoti_load_package(str(path), **runner)


def _check(made: Package, device: int) -> None:
    if not torch.cuda.is_available():
        raise LoadError(f"{made.path} is for a GPU, and torch sees none here; export the model on the CPU")
    reasons = list(dict.fromkeys(_missing(made, torch.cuda.current_device() if device < 0 else device)))
    if reasons:
        raise LoadError(
            f"{made.path}: its kernels cannot all run here: {'; '.join(reasons)}. `comfuse build-library "
            f"{made.path} -o {kernels_of(made.path)}` builds them where there is nvcc, for the GPU it was "
            f"exported for ({made.gpu}); for another one, export the model again with that one's name as gpu"
        )


def _missing(made: Package, device: int) -> Iterator[str]:
    """Why kernels cannot run; registers those that can.

    What the settings turn off, or the planner refuses for some number of rows, is none of them: it falls back
    when it is called, as anywhere.
    """
    unsupported = resolver.unsupported_gpu(device)
    if unsupported:
        yield unsupported
        return
    gpu = resolver.planner_gpu(device)
    for text, numbers in made.programs.items():
        program = parse_program(text)
        for number in numbers or [hint or MAX_ROWS for hint in hints(program, gpu)]:
            answer = resolver.resolve(text, number, device)
            hint = m_class(number, classes_on(program, gpu))
            if answer != 0 and _is_planned(program, gpu, hint):
                yield answer if isinstance(answer, str) else resolver.refusal(text, hint, device)


def _is_planned(program: FusedSpec | ChainSpec, gpu: str, hint: int | None) -> bool:
    if resolver.turned_off(program):
        return False
    try:
        tuned.plan(program, gpu, hint)
    except PlanError:
        return False
    return True
