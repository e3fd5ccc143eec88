"""Environment variables, errors and the count of fallbacks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from comfuse import errors, fallbacks, settings
from comfuse.errors import ComFuseError, FallbackError, SettingError
from tests.processes import python_path


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("COMFUSE_CACHE_DIR", "/a/b", Path("/a/b")),
        ("COMFUSE_CALIBRATION", "/a/b", Path("/a/b")),
        ("COMFUSE_JIT", "OFF", "off"),
        ("COMFUSE_JIT", "background", "background"),
        ("COMFUSE_STRICT", "1", True),
        ("COMFUSE_STRICT", "no", False),
        ("COMFUSE_LOG", "info", "info"),
        ("COMFUSE_NVCC_FLAGS", "-lineinfo -DX='a b'", ("-lineinfo", "-DX=a b")),
        ("COMFUSE_MAX_JOBS", "3", 3),
        ("COMFUSE_BUILD_TIMEOUT", "2.5", 2.5),
        ("COMFUSE_DUMP_DIR", "", None),
        ("COMFUSE_TUNED", "Off", None),
        ("COMFUSE_TUNED", "/a.json:/b.json", (Path("/a.json"), Path("/b.json"))),
        ("COMFUSE_TUNED", "", ()),
    ],
)
def test_values(name: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    (variable,) = (v for v in settings.TABLE if v.name == name)
    monkeypatch.setenv(name, text)
    assert variable.get() == value


@pytest.mark.parametrize(
    "name, text",
    [
        ("COMFUSE_JIT", "maybe"),
        ("COMFUSE_STRICT", "2"),
        ("COMFUSE_LOG", "loud"),
        ("COMFUSE_MAX_JOBS", "0"),
        ("COMFUSE_MAX_JOBS", "many"),
        ("COMFUSE_BUILD_TIMEOUT", "-1"),
        ("COMFUSE_BUILD_TIMEOUT", "nan"),
        ("COMFUSE_CACHE_DIR", "~no-such-user/cache"),
    ],
)
def test_values_that_cannot_be_read(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (variable,) = (v for v in settings.TABLE if v.name == name)
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingError, match=f"{name} is '{text}'; allowed: "):
        variable.get()


def test_a_level_of_logging_that_cannot_be_read_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("comfuse")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setenv("COMFUSE_LOG", "loud")
    level = logger.level
    try:
        settings.configure_logging()
        assert logger.level == logging.WARNING
    finally:
        logger.setLevel(level)
    (record,) = caplog.records
    assert "COMFUSE_LOG is 'loud'; allowed: debug, info, warning, error; it is taken for warning" in (
        record.getMessage()
    )


def test_comfuse_is_imported_whatever_its_settings_are() -> None:
    """As the command that lists bad settings has to."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    environment |= {variable.name: "bogus" for variable in settings.TABLE}
    done = subprocess.run(
        [sys.executable, "-c", "import comfuse.cli"],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "COMFUSE_LOG is 'bogus'" in done.stderr


def test_every_variable_has_a_default_and_a_line_of_help(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in settings.TABLE:
        monkeypatch.delenv(variable.name, raising=False)
        variable.get()
        assert variable.name.startswith("COMFUSE_")
        assert variable.help


def test_all_errors_have_one_root() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), ComFuseError)


class TestFallbacks:
    @pytest.fixture(autouse=True)
    def clean(self) -> None:
        fallbacks.reset()

    def test_counted_each_time_and_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, logger="comfuse"):
            for reason in ("no GPU", "no GPU", "no compiler"):
                fallbacks.record("op", reason)
        assert fallbacks.counts() == {("op", "no GPU"): 2, ("op", "no compiler"): 1}
        assert [r.getMessage() for r in caplog.records] == [
            "op: not fused: no GPU",
            "op: not fused: no compiler",
        ]
        fallbacks.reset()
        assert fallbacks.counts() == {}

    def test_strict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COMFUSE_STRICT", "1")
        with pytest.raises(FallbackError, match="op: not fused: no GPU") as caught:
            fallbacks.record("op", "no GPU")
        assert (caught.value.where, caught.value.reason) == ("op", "no GPU")
        assert fallbacks.counts() == {("op", "no GPU"): 1}
