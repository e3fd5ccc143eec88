"""``comfuse cache``, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from comfuse.build import prune
from comfuse.cli import main
from tests.build.test_prune import publish
from tests.build.test_robust import TOOLS


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cache", *arguments])


@pytest.fixture
def filled(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prune, "toolchain", lambda: TOOLS)
    publish("cf_current-0-0", days=40, current=True)
    publish("cf_old-0-0", days=40, current=False)
    return cache_dir


def test_list(filled: Path) -> None:
    result = invoke("list")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{filled}: 0.0 MiB\n")
    assert "  kernel: 1, 0.0 MiB\n" in result.output
    assert "  kernel of another version: 1, 0.0 MiB\n" in result.output
    assert "cf_old-0-0: 0.0 MiB, 40 days" in invoke("list", "--all").output


def test_prune(filled: Path) -> None:
    result = invoke("prune", "--dry-run")
    assert "would remove kernel of another version cf_old-0-0: 0.0 MiB, 40 days\n" in result.output
    assert result.output.endswith("1 folders, 0.0 MiB would go\n")
    assert (filled / "kernels" / "cf_old-0-0").is_dir()
    assert "0 folders" in invoke("prune", "--days", "50").output
    result = invoke("prune")
    assert "removed kernel of another version cf_old-0-0: 0.0 MiB, 40 days\n" in result.output
    assert [path.name for path in (filled / "kernels").iterdir()] == ["cf_current-0-0"]
    assert "0 folders, 0.0 MiB removed" in invoke("prune").output


def test_what_is_used_meanwhile_stays(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "remove", lambda item: False)
    assert "1 stay: in use, or used meanwhile\n" in invoke("prune").output
