"""Ships the torch binding inside the wheel where it can be built: with torch and a C++ compiler at hand.

That is so for ``pip install --no-build-isolation .``; otherwise, and in an editable install, ComFuse builds
it at the first CUDA call.  ``COMFUSE_BINDING=off`` never builds it here, ``require`` fails the install if it
cannot be. Everything else is in pyproject.toml.
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
    choice = os.environ.get("COMFUSE_BINDING", "auto")
    if choice not in ("auto", "off", "require"):
        raise SystemExit(f"COMFUSE_BINDING is {choice!r}; allowed: auto, off, require")
    if choice == "off":
        return False
    try:
        from comfuse.build import binding  # noqa: F401
        from comfuse.build.toolkit import find_cxx

        find_cxx()
    except Exception as e:  # no torch, no compiler: then at the first use
        if choice == "require":
            raise
        print(f"the torch binding will be built at first use: {type(e).__name__}: {e}", file=sys.stderr)
        return False
    return True


class BuildPy(build_py):
    """Adds comfuse/lib/comfuse_torch-<digest>.so to what is installed."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        from comfuse.build import binding

        with tempfile.TemporaryDirectory() as folder:
            library = binding.compile_into(Path(folder), lambda: None)
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


if wanted():
    setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildPy, "bdist_wheel": AnyPythonWheel})
else:
    setup()
