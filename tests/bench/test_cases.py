"""Benches of named cases keep what was measured, case by case, and say whether any failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from bench import cases, report

CASES = ("small", "large")


@dataclass(frozen=True)
class Case:
    name: str


@pytest.fixture(autouse=True)
def own_environment(monkeypatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "0")  # and back, whatever a run makes of it


def time(case: str) -> dict[str, Any]:
    return {"record": "training", "case": case, "us": 1.0}


def run(options: Any, measure: Any) -> int:
    return cases.run(
        "training",
        [Case(name) for name in CASES],
        options,
        sources=lambda case: [],
        measure=measure,
        table=lambda records: ", ".join(str(r["case"]) for r in records),
    )


def arguments(*more: str) -> Any:
    return cases.parser("training", "What it does.", [Case(name) for name in CASES]).parse_args(more)


def rows(folder: Any) -> list[dict[str, Any]]:
    (path,) = folder.glob("training-*.jsonl")
    return report.read(path)[1]


def test_rows_of_the_chosen_cases_alone(tmp_path, capsys) -> None:
    options = arguments("--cases", "large", "--output", str(tmp_path))
    assert run(options, lambda case: [time(case.name)]) == 0
    assert rows(tmp_path) == [time("large")]
    assert "large" in capsys.readouterr().out


def test_a_failure_is_kept_and_returned(tmp_path) -> None:
    options = arguments("--output", str(tmp_path))
    assert run(options, lambda case: [{"record": "training", "case": case.name, "failure": "wrong"}]) == 1
    assert [r["case"] for r in rows(tmp_path)] == list(CASES)


def test_what_was_measured_before_a_stop_is_kept(tmp_path, capsys) -> None:
    def measure(case: Case) -> list[dict[str, Any]]:
        if case.name == "large":
            raise KeyboardInterrupt
        return [time(case.name)]

    assert run(arguments("--output", str(tmp_path)), measure) == 0
    assert rows(tmp_path) == [time("small")]
    assert "stopped early" in capsys.readouterr().out


def test_an_unknown_case_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        arguments("--cases", "medium")
    assert "invalid choice: 'medium'" in capsys.readouterr().err
