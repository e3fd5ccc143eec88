"""The README is true: its Python runs, its tables are complete, its links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from comfuse import settings
from comfuse.library import catalogue

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_its_python_runs():
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        if re.search(r"comfuse\.(build|export|load)\(", code):  # tests/build and test_packages.py compile
            continue
        exec(compile(code, "README.md", "exec"), names)
    assert names["y"].shape == (512, 1024)
    assert names["source"].text.startswith(f"// {names['source'].name}")


def test_it_names_the_variables_of_the_install():
    names = set(re.findall(r"COMFUSE_[A-Z]+", (ROOT / "setup.py").read_text()))
    assert names == {"COMFUSE_BINDING", "COMFUSE_PREBUILD"}
    assert names.issubset(re.findall(r"COMFUSE_[A-Z]+", README))
    assert names.issubset(re.findall(r"COMFUSE_[A-Z]+", str(settings.__doc__)))


def test_its_catalogue_can_be_built():
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    entries = catalogue.parse("readme", tomllib.loads(text)).entries
    assert len(entries) == 4
    assert all(f"`{name}`" in README for name in catalogue.shipped())


def test_it_lists_every_setting():
    listed = set(re.findall(r"^\| `(COMFUSE_\w+)`", README, re.MULTILINE))
    assert listed == {variable.name for variable in settings.TABLE}


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text()):
        assert (ROOT / target).exists(), target


def test_its_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"'\.\[([\w,]+)\]'", README):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_ci_runs_its_test_command():
    assert "python -m pytest -n auto\n" in README
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("python -m pytest -n auto")
