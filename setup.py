"""Ships the torch binding inside the wheel where it can be built: with torch and a C++ compiler at hand.

That is so for ``pip install --no-build-isolation .``; otherwise, and in an editable install, ComFuse builds
it at the first CUDA call.  ``COMFUSE_BINDING=off`` never builds it here, ``require`` fails the install if it
cannot be.

``COMFUSE_PREBUILD`` names catalogues, separated by commas (shipped ones or TOML files): their kernels are
compiled now, which needs nvcc, and shipped as data of the package.  Everything else is in pyproject.toml.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))


def wanted() -> bool:
    """Whether to build the binding: not if it is forbidden, not without torch unless it is required."""
    if CHOICE not in ("auto", "off", "require"):
        raise SystemExit(f"COMFUSE_BINDING is {CHOICE!r}; allowed: auto, off, require")
    if CHOICE == "off":
        return False
    try:
        from comfuse.build import binding  # noqa: F401
        from comfuse.build.toolkit import find_cxx

        find_cxx()
    except Exception as e:  # no torch, no compiler
        postpone(e)
        return False
    return True


def postpone(error: Exception) -> None:
    """Says why the binding is not built now, but at the first use; raises it where it is required."""
    if CHOICE == "require":
        raise error
    print(f"the torch binding will be built at first use: {type(error).__name__}: {error}", file=sys.stderr)


def catalogues() -> list[str]:
    """The catalogues whose kernels are to be shipped."""
    return [name.strip() for name in os.environ.get("COMFUSE_PREBUILD", "").split(",") if name.strip()]


class BuildPy(build_py):
    """Adds comfuse/lib/comfuse_torch-<digest>.so and comfuse/prebuilt to what is installed."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        if BINDING:
            self._binding()
        if catalogues():
            self._library()

    def _library(self) -> None:
        from comfuse.library.builder import build_library
        from comfuse.library.catalogue import read

        folder = Path(self.build_lib) / "comfuse" / "prebuilt"
        made = build_library(
            [read(name) for name in catalogues()],
            folder,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            with_binding=False,  # it is in comfuse/lib, or built at the first use
        )
        for lock in folder.glob("*.lock"):
            lock.unlink()
        if made.refused:
            raise SystemExit(f"COMFUSE_PREBUILD: {len(made.refused)} kernels refused: {made.refused[0]}")

    def _binding(self) -> None:
        from comfuse.build import binding

        with tempfile.TemporaryDirectory() as folder:
            try:
                library = binding.compile_into(Path(folder), lambda: None)
            except Exception as e:  # one that refuses
                postpone(e)
                return
            target = Path(self.build_lib) / "comfuse" / "lib" / binding.prebuilt_path().name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, target)


class AnyPythonWheel(bdist_wheel):
    """A wheel of this platform for any Python: the binding knows of none."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


CHOICE = os.environ.get("COMFUSE_BINDING", "auto")
BINDING = wanted()
if BINDING or catalogues():
    setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildPy, "bdist_wheel": AnyPythonWheel})
else:
    setup()
